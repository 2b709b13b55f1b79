"""Merge an adapter into its 16-bit base, one tensor at a time, and prove that it is still it."""
