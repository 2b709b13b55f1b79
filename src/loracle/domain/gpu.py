"""Cards and the machines that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sourced:
    """Where a catalog value comes from: a source in words or a citation, and an ISO date.

    `measured` is true for values that we or a named third party read off a real card.
    """

    source: str
    date: str
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One isolated part of a card: its memory, and its share of the multiprocessors."""

    name: str  # 1g.5gb
    memory_bytes: int
    sm_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of card.

    `usable_bytes` is what one process can really get for its allocator and context together
    (never the label). `gemm_flops_per_s` maps dtype (`bfloat16`, `float16`, `float32`) to the
    achieved dense matrix rate; `peak_flops_per_s` is the data sheet's, FP32 accumulation.
    `sources` maps a field's name to where its value comes from.
    """

    id: str  # stable slug: rtx-4090, a100-40gb-pcie
    name: str
    aliases: tuple[str, ...] = ()
    memory_bytes: int
    usable_bytes: int
    context_bytes: int
    bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    gemm_flops_per_s: Mapping[str, float]
    compute_capability: tuple[int, int]
    num_sms: int | None = None
    tdp_watts: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    nvlink_bytes_per_s: float | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    min_driver: str | None = None
    min_cuda: str | None = None
    notes: str = ""
    sources: Mapping[str, Sourced] = field(default_factory=dict)

    @property
    def supports_bf16(self) -> bool:
        """bf16 tensor cores: compute capability 8.0 or newer (emulation does not count)."""
        return self.compute_capability >= (8, 0)

    @property
    def training_dtype(self) -> str:
        """The 16-bit dtype to train in on this card."""
        return "bfloat16" if self.supports_bf16 else "float16"

    @property
    def supports_flash_attention(self) -> bool:
        """FlashAttention-2 kernels: Ampere or newer."""
        return self.compute_capability >= (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as it is rented: so many cards of one kind, and what stands around them.

    `share` is "whole", "mig" (isolated part), "software-slice" (time or memory shared by
    software) or "unknown"; `memory_bytes` overrides the card's memory for a part.
    """

    gpu_id: str
    num_gpus: int = 1
    share: str = "whole"
    share_fraction: float = 1.0
    memory_bytes: int | None = None
    num_cores: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None
    network_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None  # one way between two cards; None: what the card has
