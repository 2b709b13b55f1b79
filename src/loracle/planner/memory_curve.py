"""Memory over one training step as a curve, and who owned it at the peak, from a trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from loracle.domain.trace import Owner, Trace

ROUNDING = 512  # bytes: what the allocator rounds a request up to


@dataclass(frozen=True, slots=True)
class Stretch:
    """One phase of the step on the curve: where it starts and ends (0 to 1), and its peak."""

    phase: str
    start: float
    end: float
    peak_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Allocated bytes over the last optimizer step of a trace.

    `points` are peaks of equal shares of the step's allocations, so that no spike is lost.
    `owners` are those of the bytes at the peak, largest first.
    """

    points: tuple[float, ...]
    stretches: tuple[Stretch, ...]
    peak_bytes: float
    resident_bytes: float
    owners: tuple[tuple[Owner, int], ...]


def memory_curve(trace: Trace, *, points: int = 96) -> MemoryCurve:
    """The curve of the last whole optimizer step of a trace."""
    first, last = _last_step(trace.marks, len(trace.events))
    held = 0.0
    live: set[int] = set()
    for event in trace.events[:first]:
        held += _change(trace, event, live)
    resident = held
    peaks = [0.0] * points
    peak, at_peak = held, set(live)
    phases = [(at, phase) for at, phase in trace.marks if first <= at < last]
    phase_peaks = [0.0] * len(phases)
    current = -1
    span = max(1, last - first)
    for at in range(first, last):
        while current + 1 < len(phases) and phases[current + 1][0] <= at:
            current += 1
        held += _change(trace, trace.events[at], live)
        bucket = min(points - 1, (at - first) * points // span)
        peaks[bucket] = max(peaks[bucket], held)
        if current >= 0:
            phase_peaks[current] = max(phase_peaks[current], held)
        if held > peak:
            peak, at_peak = held, set(live)
    return MemoryCurve(
        points=tuple(peaks),
        stretches=tuple(_stretches(phases, phase_peaks, first, last)),
        peak_bytes=peak,
        resident_bytes=resident,
        owners=_owners(trace, at_peak),
    )


def _last_step(marks: Sequence[tuple[int, str]], num_events: int) -> tuple[int, int]:
    """Events of the last stretch that ends with an optimizer step."""
    starts = [at for at, phase in marks if phase == "optimizer"]
    if not starts:
        return 0, num_events
    after = [at for at, phase in marks if at > starts[-1]]
    last = after[0] if after else num_events
    if len(starts) == 1:
        return next((at for at, phase in marks if phase != "load"), 0), last
    return next(at for at, phase in marks if at > starts[-2]), last


def _change(trace: Trace, event: int, live: set[int]) -> float:
    number = event if event >= 0 else ~event
    size = -(-trace.sizes[number] // ROUNDING) * ROUNDING
    if event >= 0:
        live.add(number)
        return size
    live.discard(number)
    return -size


def _stretches(
    phases: Sequence[tuple[int, str]], peaks: Sequence[float], first: int, last: int
) -> list[Stretch]:
    """Phases in order; neighbours of one name are one stretch."""
    span = max(1, last - first)
    found: list[Stretch] = []
    for index, ((at, phase), peak) in enumerate(zip(phases, peaks, strict=True)):
        end = phases[index + 1][0] if index + 1 < len(phases) else last
        found.append(Stretch(phase, (at - first) / span, (end - first) / span, peak))
    return found


def _owners(trace: Trace, live: set[int]) -> tuple[tuple[Owner, int], ...]:
    held: dict[Owner, int] = {}
    for number in live:
        owner = trace.owners[trace.owner_of[number]]
        held[owner] = held.get(owner, 0) + trace.sizes[number]
    return tuple(sorted(held.items(), key=lambda item: -item[1]))
