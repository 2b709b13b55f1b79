"""Steady load on all cards together, sampled each second, stopped before anything is harmed.

A short burst shows the card at its best; a few minutes show the room. One thread a card keeps
products going in batches of about a quarter of a second, the caller's thread samples NVML.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from loracle.jobs.audit.judges.thresholds import FATAL_XIDS
from loracle.jobs.audit.probes.work import _gemm_size, first_line
from loracle.jobs.audit.source import Refused

HOTTEST_CELSIUS = 90.0
BELOW_SLOWDOWN, BELOW_MEMORY_MAX = 3.0, 3.0
Sample = Callable[[int], Mapping[str, Any]]
COLUMNS = ("sm_mhz", "celsius", "memory_celsius", "watts", "events")


class _Worker(threading.Thread):
    """Products on one card until told to stop; counts what it has done."""

    def __init__(self, ordinal: int, dtype: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.ordinal, self.dtype, self.halt = ordinal, dtype, stop
        self.mark = (time.perf_counter(), 0.0)  # when the last batch ended, and all work so far
        self.error = ""

    def rate_since(self, mark: tuple[float, float]) -> float:
        """FLOP/s between two ends of batches, 0 where none ended in between."""
        seconds, flops = self.mark[0] - mark[0], self.mark[1] - mark[1]
        return flops / seconds if seconds > 0 else 0.0

    def run(self) -> None:
        """Batches of about a quarter of a second, so that stopping is quick."""
        import torch

        try:
            with torch.cuda.device(self.ordinal), torch.inference_mode():
                self._work()
        except RuntimeError as error:
            self.error = first_line(error)

    def _work(self) -> None:
        import torch

        size = _gemm_size(self.ordinal, self.dtype)
        place, kind = f"cuda:{self.ordinal}", getattr(torch, self.dtype)
        left, right = (torch.randn(size, size, device=place).to(kind) for _ in range(2))
        out = torch.empty(size, size, device=place, dtype=kind)
        count = 1
        while not self.halt.is_set():
            start = time.perf_counter()
            for _ in range(count):
                torch.matmul(left, right, out=out)
            torch.cuda.current_stream().synchronize()
            end = time.perf_counter()
            self.mark = (end, self.mark[1] + 2.0 * size**3 * count)
            count = max(1, min(256, round(count * 0.25 / max(end - start, 1e-4))))


def soak(
    cards: Mapping[int, int],
    dtypes: Mapping[int, str],
    sample: Sample,
    xids: Callable[[], list[int]],
    limits: Mapping[int, Mapping[str, float | None]],
    *,
    seconds: float,
) -> dict[str, Any]:
    """Columns of every card (NVML index -> CUDA ordinal) over so many seconds.

    `sample` reads NVML of one card; `limits` holds its slowdown and memory thresholds.
    """
    halt = threading.Event()
    workers = {index: _Worker(cards[index], dtypes[index], halt) for index in cards}
    columns: dict[int, dict[str, Any]] = {
        index: {"seconds": [], "flops_per_s": [], "stopped": None} | {name: [] for name in COLUMNS}
        for index in cards
    }
    seen: list[list[float]] = []
    start = last = time.perf_counter()
    marks = {index: worker.mark for index, worker in workers.items()}
    for worker in workers.values():
        worker.start()
    try:
        while last - start < seconds and not any(c["stopped"] for c in columns.values()):
            time.sleep(max(0.0, min(1.0, seconds - (last - start))))
            now = time.perf_counter()
            for index, worker in workers.items():
                _note(columns[index], sample, index, now - start)
                columns[index]["flops_per_s"].append(worker.rate_since(marks[index]))
                marks[index] = worker.mark
                columns[index]["stopped"] = _reason(columns[index], limits[index], worker)
            seen += [[now - start, number] for number in xids()]
            if any(int(number) in FATAL_XIDS for _, number in seen):
                for column in columns.values():
                    column["stopped"] = column["stopped"] or "xid"
            last = now
    finally:
        halt.set()
        for worker in workers.values():
            worker.join(timeout=5)
    return {"devices": {str(index): column for index, column in columns.items()}, "xids": seen}


def _note(column: dict[str, Any], sample: Sample, index: int, second: float) -> None:
    column["seconds"].append(second)
    try:
        values = sample(index)
    except Refused as refusal:
        values = {}
        if refusal.reason == "GpuIsLost":
            column["stopped"] = "lost"
    for name in COLUMNS:
        column[name].append(values.get(name))


def _reason(
    column: dict[str, Any], limits: Mapping[str, float | None], worker: _Worker
) -> str | None:
    """Why to stop now, if at all."""
    if column["stopped"]:
        return column["stopped"]
    if worker.error:
        return "error"
    core, memory = column["celsius"][-1], column["memory_celsius"][-1]
    slowdown, memory_max = limits.get("slowdown_celsius"), limits.get("memory_max_celsius")
    hottest = min(HOTTEST_CELSIUS, (slowdown or 999.0) - BELOW_SLOWDOWN)
    if core is not None and core >= hottest:
        return "hot"
    if memory is not None and memory_max and memory >= memory_max - BELOW_MEMORY_MAX:
        return "hot_memory"
    return None


def together(cards: Mapping[int, int], dtypes: Mapping[int, str], seconds: float) -> dict[str, Any]:
    """Each card's steady rate alone, one after the other, and then while all of them work."""
    alone = {index: _steady([index], cards, dtypes, seconds)[index] for index in cards}
    all_at_once = _steady(list(cards), cards, dtypes, seconds)
    return {
        "devices": {
            str(index): {
                "repeats": [all_at_once[index]], "alone": alone[index], "dtype": dtypes[index]
            }
            for index in cards
        }
    }  # fmt: skip


def _steady(
    chosen: list[int], cards: Mapping[int, int], dtypes: Mapping[int, str], seconds: float
) -> dict[int, float]:
    """Rates of some cards over so many seconds, after one and a half to settle."""
    halt = threading.Event()
    workers = {index: _Worker(cards[index], dtypes[index], halt) for index in chosen}
    for worker in workers.values():
        worker.start()
    try:
        time.sleep(1.5)
        marks = {index: worker.mark for index, worker in workers.items()}
        time.sleep(seconds)
        return {index: worker.rate_since(marks[index]) for index, worker in workers.items()}
    finally:
        halt.set()
        for worker in workers.values():
            worker.join(timeout=5)
