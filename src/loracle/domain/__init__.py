"""Nouns: frozen, typed, without any input or output. Everything else in the house speaks them."""
