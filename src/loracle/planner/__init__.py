"""Choices: what fits, which knob to turn, what it costs, what to rent."""
