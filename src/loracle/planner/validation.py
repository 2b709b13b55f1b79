"""Predicted against measured: what `loracle validate` says, and what CI guards.

Like is compared with like: allocated with `max_memory_allocated`, reserved with
`max_memory_reserved`, device with what NVML showed. Rows that no engine can answer are named with
the reason and leave the averages alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from loracle.domain.estimate import MemoryEstimate, Range
from loracle.domain.gpu import Gpu
from loracle.domain.measured import MeasuredRun
from loracle.domain.setup import TrainingSetup
from loracle.errors import LoracleError
from loracle.planner.engines import Engine

STEADY = 0.2  # a measured speed counts where its steps spread less than this
NEAR_PCT = 25

COUNTERS = {
    "allocated": ("allocated_bytes", "peak_allocated_bytes"),
    "reserved": ("reserved_bytes", "peak_reserved_bytes"),
    "device": ("device_bytes", "device_used_bytes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One quantity of one run: the predicted range and the measured value, in base units."""

    predicted: Range
    measured: float

    @property
    def error_pct(self) -> float:
        """Signed: predicted / measured - 1, in per cent."""
        return 100 * (self.predicted.likely / self.measured - 1)

    @property
    def inside(self) -> bool:
        """Whether the measured value lies inside the range."""
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One run beside its prediction.

    `memory` holds the counters that the run has a reading for. `verdict` is `right`, `risky` or
    `wrong` where a limit is known, else None. `steady` is False where the run's steps spread too
    much for its speed to count. `skipped` is the error that kept the row from being predicted.
    """

    run: MeasuredRun
    memory: Mapping[str, Pair]
    speed: Pair | None = None
    steady: bool = True
    limit_bytes: float | None = None
    verdict: str | None = None
    skipped: LoracleError | None = None


def compare(
    runs: Iterable[MeasuredRun],
    setup_of: Callable[[MeasuredRun], TrainingSetup],
    gpu_of: Callable[[str], Gpu | None],
    engine: Engine,
) -> list[Comparison]:
    """Every run against an engine. `gpu_of` gives None for a card that no catalog knows."""
    return [_compare(run, setup_of, gpu_of, engine) for run in runs]


def _compare(
    run: MeasuredRun,
    setup_of: Callable[[MeasuredRun], TrainingSetup],
    gpu_of: Callable[[str], Gpu | None],
    engine: Engine,
) -> Comparison:
    gpu = gpu_of(run.gpu)
    try:
        answer = engine(setup_of(run), gpu, run.memory_cap_bytes)
    except LoracleError as error:
        return Comparison(run=run, memory={}, skipped=error)
    memory, speed = answer.memory, answer.speed
    pairs: dict[str, Pair] = {}
    for name, (predicted, measured) in COUNTERS.items():
        reading = getattr(run, measured)
        if reading:
            pairs[name] = Pair(predicted=getattr(memory, predicted), measured=reading)
    limit, against = _limit(run, gpu, memory)
    return Comparison(
        run=run,
        memory=pairs,
        speed=Pair(predicted=speed.tokens_per_s, measured=run.tokens_per_s)
        if speed is not None and run.tokens_per_s
        else None,
        steady=run.step_spread is None or run.step_spread < STEADY,
        limit_bytes=limit,
        verdict=_verdict(answer.fits, against, limit, run.fits),
    )


def _limit(run: MeasuredRun, gpu: Gpu | None, memory: MemoryEstimate) -> tuple[float | None, Range]:
    """What the run had: a cap holds torch's reserved memory, a card holds everything."""
    if run.memory_cap_bytes is not None:
        return float(run.memory_cap_bytes), memory.reserved_bytes
    return (float(gpu.usable_bytes) if gpu else None), memory.device_bytes


def _verdict(played: bool | None, predicted: Range, limit: float | None, fits: bool) -> str | None:
    """A cap that was played out is right or wrong; a range may also be risky."""
    if played is not None:
        return "right" if played == fits else "wrong"
    if limit is None:
        return None
    if predicted.low <= limit < predicted.high:
        return "risky"
    return "right" if (predicted.high <= limit) == fits else "wrong"


def summary(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """The summary of `loracle validate --json`: errors in per cent, verdicts by kind."""
    memory: dict[str, object] = {
        name: _errors([one.memory[name].error_pct for one in comparisons if name in one.memory])
        for name in COUNTERS
    }
    verdicts = [one.verdict for one in comparisons if one.verdict is not None]
    memory["fit"] = {
        "n": len(verdicts),
        **{kind: verdicts.count(kind) for kind in ("right", "risky", "wrong")},
    }
    speeds = [one.speed for one in comparisons if one.speed is not None and one.steady]
    errors = [pair.error_pct for pair in speeds]
    return {
        "memory": memory,
        "speed": {
            **_errors(errors),
            "within_25_pct": _share(abs(error) <= NEAR_PCT for error in errors),
            "inside_range_pct": _share(pair.inside for pair in speeds),
            "unsteady": sum(one.speed is not None and not one.steady for one in comparisons),
            "spread_unknown": sum(
                one.speed is not None and one.run.step_spread is None for one in comparisons
            ),
        },
        "skipped": sum(one.skipped is not None for one in comparisons),
    }


def _errors(errors: Sequence[float]) -> dict[str, object]:
    sizes = [abs(error) for error in errors]
    return {
        "n": len(sizes),
        "mean_abs_pct": round(mean(sizes), 3) if sizes else None,
        "median_abs_pct": round(median(sizes), 3) if sizes else None,
        "max_abs_pct": round(max(sizes), 3) if sizes else None,
    }


def _share(hits: Iterable[bool]) -> float | None:
    found = list(hits)
    return round(100 * sum(found) / len(found), 1) if found else None


def document(comparisons: Sequence[Comparison], engine: str) -> dict[str, object]:
    """The JSON document: every row in base units, then the summary."""
    return {
        "schema": "loracle.validation/1",
        "engine": engine,
        "runs": [_row(one) for one in comparisons],
        "summary": summary(comparisons),
    }


def _row(one: Comparison) -> dict[str, object]:
    run = one.run
    row: dict[str, object] = {
        "id": run.id,
        "model": run.hub_id,
        "gpu": run.gpu,
        "fits": run.fits,
        "limit_bytes": one.limit_bytes,
        "verdict": one.verdict,
        "memory": {name: _pair(pair) for name, pair in one.memory.items()},
        "speed": {**_pair(one.speed), "steady": one.steady} if one.speed else None,
    }
    if one.skipped is not None:
        row["skipped"] = {"code": one.skipped.code, "message": one.skipped.message,
                          "values": dict(one.skipped.values)}  # fmt: skip
    return row


def _pair(pair: Pair) -> dict[str, object]:
    return {
        "predicted": {
            "low": pair.predicted.low,
            "likely": pair.predicted.likely,
            "high": pair.predicted.high,
        },
        "measured": pair.measured,
        "error_pct": round(pair.error_pct, 3),
        "inside": pair.inside,
    }
