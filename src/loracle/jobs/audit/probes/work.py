"""Work on one card: products, copies, one kernel over and over.

Products are of normally distributed random numbers (zeros, and chains that overflow, switch
fewer transistors and flatter the card), single, never chained. Rates are medians over CUDA
events after a warm-up, several times: a slow result counts only when it repeats.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from loracle.units import GIB, MIB

Sampler = Callable[[], dict[str, Any]]


BURST_WARM_UPS, BURST_LAUNCHES = 6, 30  # as the published rates were read


def gemm(device: int, dtype: str, *, bursts: int) -> dict[str, Any]:
    """Matrix product rates (FLOP/s) of short bursts, and how many results differ between them.

    A burst is over before a power limit bites, and so were those that the fingerprint table
    holds: an H200 makes 790 TFLOP/s for 50 ms and 660 for ever after. What is left under steady
    load is the soak's question. Between bursts the card is kept awake by light work.
    """
    import torch

    size = _gemm_size(device, dtype)
    torch.backends.cuda.matmul.allow_tf32 = False
    kind = getattr(torch, dtype)
    generator = torch.Generator(device=f"cuda:{device}").manual_seed(1)
    left, right = (
        torch.randn(size, size, device=f"cuda:{device}", generator=generator).to(kind)
        for _ in range(2)
    )
    out = torch.empty(size, size, device=f"cuda:{device}", dtype=kind)
    repeats, mismatches = [], 0
    with torch.cuda.device(device):
        first = torch.matmul(left, right, out=out).clone()
        for _ in range(bursts):
            _busy(lambda: out.copy_(left), 0.5)
            seconds = _burst_seconds(lambda: torch.matmul(left, right, out=out))
            repeats.append(2 * size**3 / seconds)
            mismatches += int((out != first).sum())
    return {"repeats": repeats, "dtype": dtype, "size": size, "mismatches": mismatches}


def _burst_seconds(launch: Callable[[], Any]) -> float:
    """Median length of a burst's launches, queued back to back."""
    import torch

    for _ in range(BURST_WARM_UPS):
        launch()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(BURST_LAUNCHES + 1)]
    marks[0].record()
    for mark in marks[1:]:
        launch()
        mark.record()
    marks[-1].synchronize()
    return statistics.median(one.elapsed_time(two) / 1000 for one, two in itertools.pairwise(marks))


def _gemm_size(device: int, dtype: str) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    if dtype == "float64":
        return 4096 if (major, minor) in ((8, 0), (9, 0), (10, 0), (7, 0), (6, 0)) else 2048
    if dtype == "float32":
        return 4096 if free > 1 * GIB else 2048
    return 8192 if free > 3 * GIB else 4096


def _busy(launch: Callable[[], Any], seconds: float) -> None:
    """Keep the card at work so that its clock leaves idle."""
    import torch

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(8):
            launch()
        torch.cuda.synchronize()


def _median_seconds(launch: Callable[[], Any], seconds: float) -> float:
    """Median length of one launch, by CUDA events, over so many seconds."""
    import torch

    lengths: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(lengths) < 10:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(9)]
        marks[0].record()
        for mark in marks[1:]:
            launch()
            mark.record()
        marks[-1].synchronize()
        pairs = itertools.pairwise(marks)
        lengths += [one.elapsed_time(two) / 1000 for one, two in pairs]
    return statistics.median(lengths)


def bandwidth(device: int, *, seconds: float) -> dict[str, Any]:
    """Copy rate on the card, bytes read plus bytes written, buffers far larger than any L2."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    count = int(min(2 * GIB, free // 4)) // 4
    source = torch.empty(count, dtype=torch.float32, device=f"cuda:{device}").uniform_()
    target = torch.empty_like(source)
    with torch.cuda.device(device):
        _busy(lambda: target.copy_(source), 0.5)
        repeats = [
            2 * 4 * count / _median_seconds(lambda: target.copy_(source), seconds) for _ in range(2)
        ]
    return {"repeats": repeats, "size": 4 * count}


def copies(device: int, link: Sampler, *, seconds: float) -> dict[str, Any]:
    """Pinned copies both ways, and the link as NVML shows it while they run."""
    import torch

    count = 256 * MIB
    pinned = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(count, dtype=torch.uint8, device=f"cuda:{device}")
    with torch.cuda.device(device):
        _busy(lambda: there.copy_(pinned, non_blocking=True), 0.5)
        for _ in range(16):
            there.copy_(pinned, non_blocking=True)
        seen = link()
        torch.cuda.synchronize()
        up = [
            count / _median_seconds(lambda: there.copy_(pinned, non_blocking=True), seconds)
            for _ in range(2)
        ]
        down = [
            count / _median_seconds(lambda: pinned.copy_(there, non_blocking=True), seconds)
            for _ in range(2)
        ]
    return {"to_device": {"repeats": up}, "to_host": {"repeats": down}, **seen}


def timing(device: int, sample: Sampler, *, launches: int, rounds: int) -> dict[str, Any]:
    """Durations of one fixed kernel of about a millisecond, launched back to back.

    The kernel is arithmetic on the card's own cores and light on power, so that a card at its
    power limit is not mistaken for a shared one.
    """
    import torch

    count = 4 * MIB
    values = torch.rand(count, device=f"cuda:{device}")
    with torch.cuda.device(device):
        _busy(lambda: torch.erfinv(values), 0.5)
        once = _median_seconds(lambda: torch.erfinv(values), 0.2)
        count = int(min(max(count * 0.001 / once, MIB), 256 * MIB))
        values = torch.rand(count, device=f"cuda:{device}")
        out = torch.empty_like(values)
        _busy(lambda: torch.erfinv(values, out=out), 1.0)
        durations: list[float] = []
        gaps: list[float] = []
        seen: list[dict[str, Any]] = []
        for turn in range(rounds):
            if turn:
                time.sleep(2.0)
                _busy(lambda: torch.erfinv(values, out=out), 0.5)
            for _ in range(launches // rounds // 50):
                _batch(lambda: torch.erfinv(values, out=out), 50, durations, gaps)
                seen.append(sample())
    clocks = [one["sm_mhz"] for one in seen if one.get("sm_mhz")]
    events = 0
    for one in seen:
        events |= int(one.get("events") or 0)
    return {
        "durations_us": durations,
        "gaps_ms": gaps,
        "sm_mhz": statistics.median(clocks) if clocks else None,
        "max_sm_mhz": seen[0].get("max_sm_mhz") if seen else None,
        "events": events,
    }


def _batch(
    launch: Callable[[], Any], count: int, durations: list[float], gaps: list[float]
) -> None:
    """Launch back to back; note each length, and stretches of 2 ms between two launches."""
    import torch

    starts = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for start, end in zip(starts, ends, strict=True):
        start.record()
        launch()
        end.record()
    ends[-1].synchronize()
    durations += [1000 * start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
    between = zip(ends, starts[1:], strict=False)
    gaps += [gap for gap in (end.elapsed_time(start) for end, start in between) if gap >= 2.0]


def kernel(device: int) -> dict[str, Any]:
    """Whether the smallest real kernels run, by dtype."""
    import torch

    place = f"cuda:{device}"
    try:
        total = float((torch.ones(64, device=place) + 1).sum())
    except RuntimeError as error:
        return {"runs": False, "error": first_line(error), "dtypes": {}}
    dtypes: dict[str, bool] = {}
    for name in ("float32", "float16", "bfloat16"):
        try:
            square = torch.eye(64, device=place, dtype=getattr(torch, name))
            dtypes[name] = bool(torch.equal(square @ square, square))
        except RuntimeError:
            dtypes[name] = False
    return {"runs": total == 128.0, "error": "", "dtypes": dtypes}


def first_line(error: BaseException) -> str:
    """The first line of an error, short."""
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200]


def free() -> None:
    """Give cached memory back to the card."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
