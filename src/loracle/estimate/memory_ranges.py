"""How far the real peak may be from the likely one, and why."""

from loracle.domain.estimate import Range
from loracle.domain.setup import TrainingSetup


def allocated_range(setup: TrainingSetup, allocated: float, moving: float) -> Range:
    """Tensors at the peak."""
    return Range.around(allocated, 0.02, 0.02)


def reserved_range(setup: TrainingSetup, allocated: float, slack: float, moving: float) -> Range:
    """What the allocator holds."""
    return Range.around(allocated + slack, 0.05, 0.05)


def device_range(
    setup: TrainingSetup, allocated: float, slack: float, moving: float, outside: float
) -> Range:
    """What nvidia-smi shows."""
    return reserved_range(setup, allocated, slack, moving).plus(outside)
