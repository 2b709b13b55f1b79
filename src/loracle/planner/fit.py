"""Does it fit, and at which micro-batch: the choice of settings for one place.

The effective batch never changes here: a larger micro-batch means fewer accumulation steps, so
that every card trains the same thing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loracle.domain.estimate import MemoryEstimate, Range, SpeedEstimate
from loracle.domain.setup import TrainingSetup
from loracle.planner.laws import Laws
from loracle.planner.packing import padded_rows
from loracle.planner.place import Place
from loracle.planner.work import Workload

LARGEST_MICRO_BATCH = 128  # beyond it nothing gets faster, and the search gets long
TIGHT_SHARE = 0.05  # less than this share of the card free at the high end is tight
_SAFETY = {"fits": 0, "tight": 1, "risky": 2, "no": 3}


@dataclass(frozen=True, slots=True)
class Choice:
    """A setup for a place, and what the laws say of it. `speed` is None where it does not fit."""

    setup: TrainingSetup
    memory: MemoryEstimate
    fit: str
    speed: SpeedEstimate | None = None

    @property
    def steps_per_s(self) -> float:
        """Likely speed, 0 where it does not fit: of one effective batch, tokens may be padding."""
        return 1 / self.speed.step_seconds.likely if self.speed else 0.0


def fit_of(device_bytes: Range, usable_bytes: float) -> str:
    """`fits`, `tight`, `risky` or `no`.

    fits: even the high end leaves 5 % of the card; tight: the high end still fits; risky: usable
    memory lies inside the range; no: not even the low end fits.
    """
    if device_bytes.low > usable_bytes:
        return "no"
    if device_bytes.high > usable_bytes:
        return "risky"
    if usable_bytes - device_bytes.high < TIGHT_SHARE * usable_bytes:
        return "tight"
    return "fits"


def safest_then_fastest(choices: Sequence[Choice]) -> Choice:
    """The fastest of those in the safest class of fit; where none fits, the smallest."""
    safest = min(_SAFETY[choice.fit] for choice in choices)
    group = [choice for choice in choices if _SAFETY[choice.fit] == safest]
    if safest == _SAFETY["no"]:
        return min(group, key=lambda choice: choice.memory.device_bytes.likely)
    return max(group, key=lambda choice: choice.steps_per_s)


def choose(
    setup: TrainingSetup, place: Place, work: Workload, laws: Laws, *, micro_batch: int | None
) -> Choice | None:
    """The best way to run `setup` on `place` at its effective batch.

    `micro_batch` is the recipe's, or None for auto: the fastest in the safest class of fit. Of
    several cards, data parallel and sharded are both tried. None where the effective batch cannot
    be split over the cards.
    """
    families = _families(setup, place, micro_batch)
    choices = [
        choice for family in families for choice in _best_sizes(family, place, work, laws)
    ]  # fmt: skip
    return safest_then_fastest(choices) if choices else None


def judge(setup: TrainingSetup, place: Place, work: Workload, laws: Laws) -> Choice:
    """What the laws say of exactly this setup on this place.

    Memory at the longest sequence, time at the mean one.
    """
    longest = setup.with_changes(seq_len=work.peak_len)
    memory, fit = _fit(longest, place, work, laws)
    if fit == "no":
        return Choice(longest, memory, fit)
    usual = usual_setup(setup, place, work)
    return Choice(longest, memory, fit, laws.speed(usual, place.gpu, place.around))


def usual_setup(setup: TrainingSetup, place: Place, work: Workload) -> TrainingSetup:
    """The setup at the length that its sequences have on average, padding included."""
    rows = padded_rows(setup, place.gpu.compute_capability)
    return setup.with_changes(seq_len=work.padded_to(rows))


def _best_sizes(
    family: Sequence[TrainingSetup], place: Place, work: Workload, laws: Laws
) -> list[Choice]:
    """The best micro-batches of the safest class of fit; the smallest where none fits.

    `family` is in ascending order of micro-batch. A larger one needs no less memory, so the search
    goes down from the largest and stops where it fits; it is seldom slower, so two are compared,
    but for rows of many lengths: more of them are padded to a longer one, so all are.
    """
    fits: list[str] = []
    for one in reversed(family):
        fits.append(_fit(one, place, work, laws)[1])
        if fits[-1] == "fits":
            break
    if not fits:
        return []
    safest = min(fits, key=lambda fit: _SAFETY[fit])
    if safest == "no":
        return [judge(family[0], place, work, laws)]
    largest = len(family) - 1 - fits.index(safest)
    pads = work.mean_len > work.real_len
    smallest = 0 if pads else max(0, largest - 1)
    chosen = [judge(one, place, work, laws) for one in family[smallest : largest + 1]]
    return [choice for choice in chosen if _SAFETY[choice.fit] <= _SAFETY[safest]]


def _fit(
    setup: TrainingSetup, place: Place, work: Workload, laws: Laws
) -> tuple[MemoryEstimate, str]:
    memory = laws.memory(setup.with_changes(seq_len=work.peak_len), place.gpu)
    return memory, fit_of(memory.device_bytes, place.gpu.usable_bytes)


def micro_batches(per_card: int) -> tuple[int, ...]:
    """The micro-batches that divide a card's share of the effective batch, smallest first."""
    largest = min(per_card, LARGEST_MICRO_BATCH)
    return tuple(size for size in range(1, largest + 1) if per_card % size == 0)


def _families(
    setup: TrainingSetup, place: Place, micro_batch: int | None
) -> Iterator[list[TrainingSetup]]:
    """Per way of using several cards, the setups by growing micro-batch."""
    effective = setup.micro_batch * setup.grad_accum * setup.num_gpus
    per_card, rest = divmod(effective, place.num_gpus)
    if rest or per_card == 0:
        return
    sizes = micro_batches(per_card) if micro_batch is None else (micro_batch,)
    for parallel in ("none",) if place.num_gpus == 1 else ("ddp", "fsdp"):
        yield [
            setup.with_changes(
                micro_batch=size,
                grad_accum=per_card // size,
                num_gpus=place.num_gpus,
                parallel=parallel,
                eval_micro_batch=size if setup.eval_micro_batch else None,
            )
            for size in sizes
            if per_card % size == 0
        ]
