"""Fill nearly all free memory with numbers that know their address, and read all of it back.

Catches totals with nothing behind them, cells that forget, memory that is paged to the host
(its chunks move at link speed), and a limit on what this process may take. Plain allocations
only, in chunks, with room left for others; freed at once.
"""

import statistics
import time
from typing import Any

from loracle.units import MIB

_ODD = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_CHUNK = 512 * MIB


def pattern(
    device: int, *, share: float = 0.95, seconds: float = 60.0, shared: bool = False
) -> dict[str, Any]:
    """Write, flip and verify; `shared` shrinks the test where somebody else is on the card."""
    import torch

    from loracle.jobs.audit.probes.work import free as give_back

    give_back()
    free, _ = torch.cuda.mem_get_info(device)
    wanted = int(free * (0.5 if shared else share))
    words = min(_CHUNK, free // 64) // 8
    end = time.monotonic() + seconds
    chunks: list[Any] = []
    stopped = "shared" if shared else None
    with torch.cuda.device(device):
        try:
            check, differs, chunks, out_of_memory = _take(device, words, wanted)
            stopped = "OutOfMemory" if out_of_memory else stopped
            rates = _fill(chunks, end)
            wrong = _verify(chunks, check, differs)
        finally:
            tested = len(chunks) * words * 8
            chunks.clear()
            check = differs = None
            give_back()
    return {
        "free_bytes": free,
        "tested_bytes": tested,
        "mismatched_words": wrong,
        "slowest_chunk_bytes_per_s": min(rates, default=None),
        "median_chunk_bytes_per_s": statistics.median(rates) if rates else None,
        "slow_chunk_share": _slow_share(rates),
        "stopped": stopped,
    }


def _slow_share(rates: list[float]) -> float:
    """Share of the chunks that moved at under a tenth of the median."""
    if not rates:
        return 0.0
    line = 0.1 * statistics.median(rates)
    return sum(rate < line for rate in rates) / len(rates)


def _take(device: int, words: int, wanted: int) -> tuple[Any, Any, list[Any], bool]:
    """Room to compare in, and as many chunks as are wanted or can be had."""
    import torch

    place = f"cuda:{device}"
    check = torch.empty(words, dtype=torch.int64, device=place)
    differs = torch.empty(words, dtype=torch.bool, device=place)
    chunks: list[Any] = []
    while (len(chunks) + 2) * words * 8 + words <= wanted:
        try:
            chunks.append(torch.empty(words, dtype=torch.int64, device=place))
        except torch.cuda.OutOfMemoryError:
            del chunks[-1:]  # room for what counting needs
            return check, differs, chunks, True
    return check, differs, chunks, False


def _fill(chunks: list[Any], end: float) -> list[float]:
    """Write every chunk, then flip every bit in place, timed chunk by chunk."""
    import torch

    for at, chunk in enumerate(chunks):
        torch.arange(at * chunk.numel(), (at + 1) * chunk.numel(), out=chunk)
        chunk.mul_(_ODD)
    rates = []
    for chunk in chunks:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        chunk.bitwise_not_()
        stop.record()
        stop.synchronize()
        rates.append(2 * chunk.numel() * 8 / (start.elapsed_time(stop) / 1000))
        if time.monotonic() > end:
            break
    for chunk in chunks[len(rates) :]:
        chunk.bitwise_not_()
    return rates


def _verify(chunks: list[Any], check: Any, differs: Any) -> int:
    """How many words are not what was written, from first to last."""
    import torch

    wrong = 0
    for at, chunk in enumerate(chunks):
        torch.arange(at * chunk.numel(), (at + 1) * chunk.numel(), out=check)
        check.mul_(_ODD).bitwise_not_()
        torch.ne(chunk, check, out=differs)
        wrong += int(differs.sum())
    return wrong
