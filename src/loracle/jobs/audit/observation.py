"""What was seen, as plain frozen data: the judge reads this and nothing else.

A field is None where the source refused; `refusals` then says why, by the key that was asked.
Units are in the names. Nothing here names a person, a host or an address.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Series = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """NVML samples before any context of ours exists."""

    used_bytes: Series = ()
    gpu_percent: Series = ()
    memory_percent: Series = ()
    watts: Series = ()
    sm_mhz: Series = ()
    events: Series = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """What the CUDA runtime says of one device."""

    name: str | None = None
    num_sms: int | None = None
    compute_capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    l2_bytes: int | None = None
    bus_id: str | None = None
    uuid_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations of one fixed kernel, launched alone many times over."""

    durations_us: tuple[float, ...]
    gaps_ms: tuple[float, ...] = ()  # stretches between launches of 2 ms and more
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    events: int = 0  # clock-event bits seen during the run, or-ed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one kind of work: one median per repeat, the best of them counts."""

    repeats: tuple[float, ...]
    dtype: str = ""
    size: int | None = None
    mismatches: int | None = None  # results that differ between equal products
    alone: float | None = None  # the same card's steady rate while the others rest

    @property
    def best(self) -> float:
        """The fastest repeat."""
        return max(self.repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """Pinned copies over the link, and the link as it stood while they ran."""

    to_device: Rates | None = None
    to_host: Rates | None = None
    generation: int | None = None
    lanes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A write-and-read-back of nearly all free memory."""

    free_bytes: int
    tested_bytes: int
    mismatched_words: int
    slowest_chunk_bytes_per_s: float | None = None
    median_chunk_bytes_per_s: float | None = None
    slow_chunk_share: float = 0.0  # of the chunks, under a tenth of the median
    stopped: str | None = None  # OutOfMemory, Timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Whether the smallest real kernel runs, by dtype; the error's words where it does not."""

    runs: bool
    error: str = ""
    dtypes: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """Columns of the soak of one card (see domain.audit.SoakCurve)."""

    seconds: tuple[float, ...]
    flops_per_s: Series
    sm_mhz: Series = ()
    celsius: Series = ()
    memory_celsius: Series = ()
    watts: Series = ()
    events: Series = ()
    stopped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card by all paths: NVML's answers by key, CUDA's, the kernel's, and the probes'.

    `nvml` holds the plain answers of `nvml.GETTERS` that were not refused; `after` the counters
    read again at the end.
    """

    index: int
    nvml: Mapping[str, object] = field(default_factory=dict)
    cuda: CudaDevice | None = None
    proc_model: str | None = None
    proc_uuid_hash: str | None = None
    sys_device_id: str | None = None
    sys_vendor_id: str | None = None
    idle: Idle | None = None
    context_bytes: int | None = None
    processes_before: int | None = None
    timing: Timing | None = None
    kernel: Kernel | None = None
    gemm: Rates | None = None
    fp16: Rates | None = None
    fp32: Rates | None = None
    fp64: Rates | None = None
    bandwidth: Rates | None = None
    copies: HostCopy | None = None
    pattern: Pattern | None = None
    together: Rates | None = None
    soak: Soak | None = None
    after: Mapping[str, object] = field(default_factory=dict)
    nvlinks: int | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """An NVML answer as a number, None where it was refused."""
        value = self.nvml.get(key)
        return float(value) if isinstance(value, int | float) else None

    def text(self, key: str) -> str | None:
        """An NVML answer as text, None where it was refused."""
        value = self.nvml.get(key)
        return value if isinstance(value, str) else None

    def part(self, key: str, name: str) -> object:
        """One entry of an NVML answer that is a mapping."""
        value = self.nvml.get(key)
        return value.get(name) if isinstance(value, Mapping) else None

    @property
    def bus_id(self) -> str | None:
        """PCI bus id by NVML, or by CUDA."""
        return _bus(self.part("pci", "bus_id")) or (self.cuda.bus_id if self.cuda else None)

    @property
    def device_id(self) -> str | None:
        """PCI device id: the kernel's word before NVML's."""
        return self.sys_device_id or _upper(self.part("pci", "device_id"))

    @property
    def name(self) -> str | None:
        """The name by NVML, or by CUDA."""
        return self.text("name") or (self.cuda.name if self.cuda else None)

    @property
    def total_bytes(self) -> int | None:
        """All memory by NVML, or by CUDA (which leaves the driver's reserve out)."""
        total = self.part("memory", "total_bytes")
        if isinstance(total, int):
            return total
        return self.cuda.total_bytes if self.cuda else None

    @property
    def is_part(self) -> bool:
        """Whether CUDA or NVML say that this is a MIG part."""
        mode = self.nvml.get("mig_mode")
        names = (self.text("name"), self.cuda.name if self.cuda else None)
        named = any(" MIG " in f"{name} " for name in names)
        return named or (isinstance(mode, list) and mode[:1] == [1])

    @property
    def is_vgpu(self) -> bool:
        """Whether this is a guest of NVIDIA vGPU, by mode, brand or name."""
        brand = self.number("brand") or 0
        return self.number("virtualisation") == 2 or 7 <= brand <= 10 or "GRID" in (self.name or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One direction between two cards."""

    source: int
    target: int
    reported: bool
    bytes_per_s: float | None = None
    mismatched: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One place that a run writes to: `role` is output, cache, temporary."""

    role: str
    free_bytes: int
    total_bytes: int
    file_system: str = ""
    same_as: str | None = None  # an earlier role on the same file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the cards, as far as the control group grants it."""

    cores_granted: float | None = None
    cores_listed: int | None = None
    ram_granted_bytes: int | None = None
    ram_listed_bytes: int | None = None
    shm_bytes: int | None = None
    cpu_throttled_share: float | None = None
    cpu_steal_share: float | None = None
    disks: tuple[Disk, ...] = ()
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    download_from: str | None = None
    container: str | None = None  # docker, kubernetes, lxc, wsl, gvisor, none
    refusals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Signs of a tampered or sliced view: preloads, shims, mounts, known variables."""

    preloads: tuple[str, ...] = ()
    nvidia_smi: str | None = None  # elf, script, other; None where there is none
    mounts: tuple[Mapping[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    slicer_files: tuple[str, ...] = ()
    mapped_libraries: tuple[str, ...] = ()
    device_nodes: int | None = None
    proc_cards: int | None = None
    kernel_driver: str | None = None  # version by /proc/driver/nvidia/version
    refusals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions and real trials of what training stands on."""

    python: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    arch_list: tuple[str, ...] = ()
    cuda_available: bool | None = None
    cuda_error: str = ""
    bitsandbytes: Mapping[str, object] | None = None
    flash_attn: Mapping[str, object] | None = None
    flash_sdpa: Mapping[str, object] | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that one audit saw."""

    cards: tuple[Card, ...]
    num_nvml_devices: int | None
    host: Host
    paths: Paths
    software: Software
    peers: tuple[Peer, ...] = ()
    xids: tuple[tuple[int, int], ...] = ()  # (seconds since the soak began, number)
    nvml_refusal: str | None = None
    started_at: str = ""
    seconds: float = 0.0
    soaked_seconds: float = 0.0


def _bus(value: object) -> str | None:
    """`00000000:01:00.0` and `0000:01:00.0` are one: `0000:01:00.0`."""
    if not isinstance(value, str) or value.count(":") != 2:
        return None
    domain, bus, device = value.lower().split(":")
    return f"{domain[-4:]}:{bus}:{device}"


def _upper(value: object) -> str | None:
    return value.upper() if isinstance(value, str) else None
