"""The exact engine: the real training step on fake tensors, replayed through an allocator."""
