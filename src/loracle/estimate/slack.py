"""How much more the caching allocator reserves than what is allocated at the peak."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Bytes that decide the use of segments.

    `kept` is of one layer on average; `forward` and `backward` are one layer's peaks, `head` that
    of norm, head and loss; `logits` one fp32 copy of them (0 with a fused head).
    """

    layers: int
    kept: float
    forward: float
    backward: float
    head: float
    logits: float
    fixed: float
    allocated: float
    checkpointed: bool
    trained: bool


def allocator_slack(shape: Shape) -> float:
    """Reserved minus allocated, in bytes."""
    moving = shape.allocated - shape.fixed
    return moving * (0.35 if shape.checkpointed else 0.035)
