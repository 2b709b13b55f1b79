"""How much more the caching allocator reserves than what is allocated at the peak.

PyTorch's allocator asks the driver for a segment whenever no free block fits, and gives none back:
the holes that large, short-lived tensors leave can only be used by smaller ones. Four things fill
reserved memory beyond the allocated peak:

- the forward pass of one layer has sizes of its own, whose segments the backward pass uses in part;
- the fp32 logits live before the backward pass, in blocks so large that a layer fills them badly;
- every checkpoint (or kept layer) takes a block that was cut for something a little larger;
- small tensors and the model itself leave half-filled segments.

The shares below are the least absolute error of 319 whole steps of 80 catalog models, run on the
toy autograd and replayed through the dry run's model of the allocator. No measured run was used:
`benchmarks/memory_calibration.py` makes them again, and says how far they are from each.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Bytes that decide the use of segments.

    `forward` is one layer's peak in the forward pass beyond what it keeps, `logits` one fp32 copy
    of the logits (0 with a fused head), `kept` what all layers keep.
    """

    forward: float
    logits: float
    kept: float
    checkpointed: bool


@dataclass(frozen=True, slots=True)
class _Shares:
    forward: float
    logits: float
    kept: float
    fixed_bytes: float


_CHECKPOINTED = _Shares(forward=0.108, logits=0.782, kept=0.321, fixed_bytes=63 * MIB)
_PLAIN = _Shares(forward=0.408, logits=0.556, kept=0.024, fixed_bytes=16 * MIB)
OPTIMIZER_SHARE = 0.02  # the optimizer's temporaries are as large as the gradients they follow


def allocator_slack(shape: Shape) -> float:
    """Bytes reserved beyond the allocated peak of the forward and backward passes."""
    shares = _CHECKPOINTED if shape.checkpointed else _PLAIN
    return (
        shares.forward * shape.forward
        + shares.logits * shape.logits
        + shares.kept * shape.kept
        + shares.fixed_bytes
    )


def reserved_peak(shape: Shape, passes: float, optimizer: float) -> float:
    """Reserved memory from the allocated peaks of the passes and of the optimizer step."""
    return max(passes + allocator_slack(shape), optimizer * (1 + OPTIMIZER_SHARE))
