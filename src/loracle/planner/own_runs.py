"""A user's own measurements in the plan: what a card did here outweighs what it should do.

For a card with own runs, the speed law's answer is moved by the median quotient of measured over
estimated tokens a second, taken with the same law and each run's own setup. Its range narrows to
what the own runs spread, and no further than a tenth each way: another model on the same card
still differs.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loracle.domain.estimate import Range, SpeedEstimate
from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.planner.laws import Laws

if TYPE_CHECKING:
    from loracle.domain.measured import MeasuredRun

STEADY = 0.2  # a run whose steps spread further is launch-bound or disturbed
LEAST_SPREAD = 0.10
NOTE = "note.own_runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSpeed:
    """Measured over estimated speed of one card: the median, and the ends of what was seen."""

    factor: float
    low: float
    high: float
    num_runs: int


def own_speeds(
    runs: "Iterable[MeasuredRun]",
    gpus: Iterable[Gpu],
    laws: Laws,
    setup_of: "Callable[[MeasuredRun], TrainingSetup]",
) -> dict[str, OwnSpeed]:
    """Card id -> how it did against the law, for cards with steady runs on one card."""
    known = {gpu.id: gpu for gpu in gpus} | {gpu.name: gpu for gpu in gpus}
    quotients: dict[str, list[float]] = {}
    for run in runs:
        gpu = known.get(run.gpu)
        steady = run.step_spread is None or run.step_spread <= STEADY
        if gpu is None or not run.tokens_per_s or not steady or run.num_gpus != 1:
            continue
        estimate = laws.speed(setup_of(run), gpu, Node(gpu_id=gpu.id))
        quotients.setdefault(gpu.id, []).append(run.tokens_per_s / estimate.tokens_per_s.likely)
    return {
        card: OwnSpeed(
            factor=statistics.median(found), low=min(found), high=max(found), num_runs=len(found)
        )
        for card, found in quotients.items()
    }


def user_laws(gpus: Iterable[Gpu]) -> Laws:
    """The formula's laws, moved by the runs that `loracle bench` has kept on this computer."""
    from loracle.catalog.user_runs import user_runs
    from loracle.planner.laws import formula_laws

    laws, runs = formula_laws(), user_runs()
    if not runs:
        return laws
    from loracle.catalog.measured import setup_of

    return with_own_speeds(laws, own_speeds(runs, gpus, laws, setup_of))


def with_own_speeds(laws: Laws, own: Mapping[str, OwnSpeed]) -> Laws:
    """The same laws, moved to what the user's own cards did."""

    def speed(setup: TrainingSetup, gpu: Gpu, node: Node) -> SpeedEstimate:
        estimate = laws.speed(setup, gpu, node)
        mine = own.get(gpu.id)
        return estimate if mine is None else moved(estimate, mine)

    return Laws(laws.memory, speed, laws.engine) if own else laws


def moved(estimate: SpeedEstimate, own: OwnSpeed) -> SpeedEstimate:
    """An estimate moved by a card's own factor, with its narrower range."""
    likely = estimate.tokens_per_s.likely * own.factor
    low = min(own.low / own.factor, 1 - LEAST_SPREAD)
    high = max(own.high / own.factor, 1 + LEAST_SPREAD)
    seconds = estimate.step_seconds.likely / own.factor
    return replace(
        estimate,
        tokens_per_s=Range(likely * low, likely, likely * high),
        step_seconds=Range(seconds / high, seconds, seconds / low),
        terms=tuple(replace(term, value=term.value / own.factor) for term in estimate.terms),
        notes=(*estimate.notes, NOTE),
    )
