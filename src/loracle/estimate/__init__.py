"""Laws: pure functions from facts to estimates. No torch, no input or output."""
