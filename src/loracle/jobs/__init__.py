"""Deeds: audit, train, evaluate, merge. The only layer that touches a card."""
