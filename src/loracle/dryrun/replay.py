"""From a trace to the numbers of one card: peaks, timeline, owners, and whether a cap holds."""

from dataclasses import dataclass

from loracle.domain.trace import Owner, Trace
from loracle.dryrun.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory

# What NVML shows beside torch's reserved bytes and the bare context once cuBLAS, cuDNN and
# bitsandbytes have loaded their kernels: the same 145 MiB in every clean run on an H200.
KERNEL_MODULES_BYTES = 152_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunMemory:
    """What the card would show. Bytes throughout.

    `timeline` is (phase, allocated at its peak, reserved at its end) in order. `owners` are those
    of the bytes at the allocated peak, largest first. `fits` is False where the cap was hit.
    """

    model_bytes: int
    peak_allocated: int
    peak_reserved: int
    peak_device: int
    peak_phase: str
    timeline: tuple[tuple[str, int, int], ...]
    owners: tuple[tuple[Owner, int], ...]
    fits: bool
    num_retries: int = 0


def replay(
    trace: Trace,
    *,
    context_bytes: int = 0,
    cap_bytes: int | None = None,
    settings: AllocatorSettings | None = None,
) -> DryRunMemory:
    """Play the trace through an allocator.

    The load phase runs without a cap and ends with `torch.cuda.empty_cache()`, as the harness and
    loracle's own trainer do; `peak_device` = reserved peak + context + kernel
    modules + unified memory.
    """
    allocator = CachingAllocator(None, settings)
    blocks: dict[int, Block] = {}
    marks = dict(reversed(trace.marks))
    phase = "load"
    timeline: list[tuple[str, int, int]] = []
    model_bytes = 0
    peak, peak_phase, peak_at = 0, "load", 0
    phase_peak = 0
    fits = True
    loading = True
    for at, event in enumerate(trace.events):
        started = marks.get(at)
        if started is not None:
            if phase != "load":
                timeline.append((phase, phase_peak, allocator.reserved))
            phase = started
            phase_peak = allocator.allocated
            if loading and phase != "load":
                loading = False
                allocator.empty_cache()
                allocator.reset_peaks()
                model_bytes = peak = allocator.allocated
                allocator.cap_bytes = cap_bytes
        if event < 0:
            allocator.free(blocks.pop(~event))
            continue
        try:
            blocks[event] = allocator.malloc(trace.sizes[event])
        except OutOfMemory:
            fits = False
            break
        if allocator.allocated > phase_peak:
            phase_peak = allocator.allocated
            if phase_peak > peak and not loading:
                peak, peak_phase, peak_at = phase_peak, phase, at
    timeline.append((phase, phase_peak, allocator.reserved))
    return DryRunMemory(
        model_bytes=model_bytes,
        peak_allocated=allocator.peak_allocated,
        peak_reserved=allocator.peak_reserved,
        peak_device=allocator.peak_reserved
        + context_bytes
        + KERNEL_MODULES_BYTES
        + trace.managed_bytes,
        peak_phase=peak_phase,
        timeline=tuple(timeline),
        owners=owners_at(trace, peak_at),
        fits=fits,
        num_retries=allocator.num_retries,
    )


def owners_at(trace: Trace, at: int) -> tuple[tuple[Owner, int], ...]:
    """Who holds the bytes after event `at`, largest first."""
    live: set[int] = set()
    for event in trace.events[: at + 1]:
        if event >= 0:
            live.add(event)
        else:
            live.discard(~event)
    held: dict[Owner, int] = {}
    for number in live:
        owner = trace.owners[trace.owner_of[number]]
        held[owner] = held.get(owner, 0) + trace.sizes[number]
    return tuple(sorted(held.items(), key=lambda item: -item[1]))
