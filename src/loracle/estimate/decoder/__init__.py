"""Decoders without values: layers that log what they would allocate on a card."""
