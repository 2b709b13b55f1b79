"""The plan: the one object that `plan` makes, `audit` re-scores and `train` is held against."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loracle.domain.estimate import MemoryEstimate, Range, SpeedEstimate
from loracle.domain.money import Money
from loracle.domain.setup import TrainingSetup

SCHEMA = "loracle.plan/1"
FITS = ("fits", "tight", "risky", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A piece of advice: a message id and the numbers that go into it (base units)."""

    id: str
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What the planner needs to know of the data set.

    `length_percentiles` maps 50, 90, 95, 99, 100 to tokens a sample. `counted_by` is
    `tokenizer`, `bytes` or `given`; `tokens` is a range because bytes only bound it.
    """

    num_samples: int
    tokens: Range
    counted_by: str
    length_percentiles: Mapping[int, float] = field(default_factory=dict)
    cut_share: float = 0.0  # share of samples longer than the sequence length
    tokens_kept: Range | None = None  # after the cut
    packed_sequences: int | None = None
    padding_share: float = 0.0  # tokens wasted on padding without packing
    format: str = ""
    bad_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of the job's timeline (set-up, download, training, ...), in seconds."""

    id: str
    seconds: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What the job costs under one offer and term: whole terms where the offer bills them."""

    offer_id: str
    term: str
    unit_price: Money  # per period
    period: str
    billed_periods: Range
    low: Money
    likely: Money
    high: Money
    lines: tuple[tuple[str, Money], ...] = ()
    stale: bool = False
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The fastest setting that fits a card at the same effective batch.

    `gain` is its speed over that of the candidate's own setting (1.18: 18 % faster), counted in
    useful tokens, so that packing counts for what it saves in padding.
    """

    setup: TrainingSetup
    device_bytes: Range
    tokens_per_s: Range
    fit: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the job: cards, fit, speed, timeline and cost."""

    rank: int | None  # None where it cannot be recommended
    gpu_id: str
    num_gpus: int
    offer_id: str | None
    setup: TrainingSetup
    usable_bytes: int
    memory: MemoryEstimate
    fit: str  # fits, tight, risky, no
    speed: SpeedEstimate | None
    timeline: tuple[Phase, ...] = ()
    cost: CostEstimate | None = None
    labels: tuple[str, ...] = ()  # cheapest, fastest, dominated, over_budget, late, ...
    dominated_by: int | None = None
    share: str = "whole"  # whole, mig, software-slice, unknown
    filled: Filled | None = None

    @property
    def free_bytes(self) -> float:
        """Usable memory left at the likely peak; negative where it does not fit."""
        return self.usable_bytes - self.memory.device_bytes.likely

    @property
    def seconds(self) -> Range:
        """The whole timeline."""
        total = Range.exact(0)
        for phase in self.timeline:
            total = total.plus(phase.seconds)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. `recipe` is the resolved recipe as plain data, with every default filled."""

    recipe: Mapping[str, object]
    setup: TrainingSetup  # the baseline that the candidates start from
    data: DataFacts
    num_steps: int
    total_tokens: Range
    memory: MemoryEstimate
    candidates: tuple[Candidate, ...]
    verdict: Hint
    best: int | None  # index into candidates
    hints: tuple[Hint, ...] = ()
    epochs: float = 0.0
    engine: str = "formula"
    as_of: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
