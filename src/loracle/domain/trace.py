"""What the dry run saw: every storage's life, and every operation of one optimizer step.

A trace belongs to one `TrainingSetup` and one set of library versions, and to no card: the memory
engine replays `events` through an allocator with any cap, the speed laws price `ops` on any card.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

OP_KINDS = (
    "gemm", "attention", "elementwise", "dequant", "optimizer", "embedding", "norm", "loss",
    "copy", "other",
)  # fmt: skip
OWNER_KINDS = (
    "parameter", "quantised_weight", "adapter", "buffer", "batch", "activation", "gradient",
    "optimizer_state", "optimizer_scratch", "workspace", "load",
)  # fmt: skip
OP_PHASES = ("forward", "recompute", "backward", "optimizer", "evaluation")


@dataclass(frozen=True, slots=True)
class Op:
    """One kind of operation, with how often it runs in one optimizer step on one card.

    `flops` and `bytes` (read + written) are of one run. `shape` is (m, n, k) for a gemm, with the
    batch folded into m; (batch, heads, query, key, head_dim) for attention; that of the largest
    operand otherwise. `launches` is the number of kernels that one run puts on the stream.
    """

    kind: str
    name: str
    flops: float
    bytes: float
    dtype: str
    shape: tuple[int, ...]
    phase: str
    count: int = 1
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asked for a storage: module path (N for the layer's number), kind, operation."""

    module: str
    kind: str  # one of OWNER_KINDS
    op: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Allocations and frees in order, and the priced operations of one optimizer step.

    An event is a storage number: n >= 0 births storage n (of `sizes[n]` bytes), ~n frees it.
    `marks` are (event index, phase) where a phase starts. `managed_bytes` live in CUDA unified
    memory outside torch (paged optimizer states). `num_kernels` counts one optimizer step.
    """

    events: tuple[int, ...]
    sizes: tuple[int, ...]
    owners: tuple[Owner, ...]
    owner_of: tuple[int, ...]  # index into owners, by storage
    marks: tuple[tuple[int, str], ...]
    ops: tuple[Op, ...]
    num_kernels: int
    trainable_params: int
    managed_bytes: int = 0
    software: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # message ids: what was assumed
