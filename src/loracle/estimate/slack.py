"""How much more the caching allocator reserves than what is allocated at the peak.

PyTorch's allocator asks the driver for a segment whenever no free block fits, and gives none back:
the holes that large, short-lived tensors leave can only be used by smaller ones. Beside what
loading leaves (`estimate/loading.py`), three things fill reserved memory beyond the peak:

- the forward pass of one layer has sizes of its own, whose segments the backward pass uses in part;
- the fp32 logits live before the backward pass, in blocks so large that a layer fills them badly;
- every checkpoint (or kept layer) takes a block that was cut for something a little larger.

Their shares are the least absolute error over 1,500 whole steps of the catalog's models at random
settings, each run on the toy autograd and replayed through `estimate/segments.py`; no measured run
was used. A replay is within 1 % of the measured runs but takes 40 ms, so a search cannot afford
it. `benchmarks/memory_calibration.py` makes the shares again and prints what they miss by.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Bytes that decide the use of segments.

    `loading` is what the loaded model leaves free, `forward` one layer's peak in the forward pass
    beyond what it keeps, `logits` one fp32 copy of the logits (0 with a fused head), `kept` what
    all layers keep. Where only every n-th layer is recomputed, `kept` is what those keep and
    `kept_whole` what the others do.
    """

    loading: float
    forward: float
    logits: float
    kept: float
    checkpointed: bool
    kept_whole: float = 0.0


@dataclass(frozen=True, slots=True)
class _Shares:
    forward: float
    logits: float
    kept: float
    fixed_bytes: float


_MIB = 1 << 20
_SHARES = {  # (checkpointed, whole logits)
    (True, False): _Shares(forward=0.153, logits=0.000, kept=0.230, fixed_bytes=10 * _MIB),
    (True, True): _Shares(forward=0.683, logits=0.547, kept=0.262, fixed_bytes=0 * _MIB),
    (False, False): _Shares(forward=0.454, logits=0.000, kept=0.019, fixed_bytes=0 * _MIB),
    (False, True): _Shares(forward=0.524, logits=0.462, kept=0.017, fixed_bytes=50 * _MIB),
}
OPTIMIZER_SHARE = 0.015  # the optimizer's temporaries are as large as the gradients they follow


def allocator_slack(shape: Shape) -> float:
    """Bytes reserved beyond the allocated peak of the forward and backward passes."""
    shares = _SHARES[shape.checkpointed, shape.logits > 0]
    whole = _SHARES[False, shape.logits > 0]
    return (
        shape.loading
        + shares.forward * shape.forward
        + shares.logits * shape.logits
        + shares.kept * shape.kept
        + whole.kept * shape.kept_whole
        + shares.fixed_bytes
    )


def reserved_peak(shape: Shape, passes: float, optimizer: float) -> float:
    """Reserved memory from the allocated peaks of the passes and of the optimizer step."""
    return max(passes + allocator_slack(shape), optimizer * (1 + OPTIMIZER_SHARE))
