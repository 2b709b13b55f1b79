"""Estimates: a range with a likely value, and the terms that explain it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Range:
    """low <= likely <= high, in whatever base unit the field that holds it names."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"range out of order: {self.low}, {self.likely}, {self.high}")

    @classmethod
    def exact(cls, value: float) -> "Range":
        """A value without doubt."""
        return cls(value, value, value)

    @classmethod
    def around(cls, likely: float, below: float, above: float) -> "Range":
        """likely x (1 - below) .. likely x (1 + above)."""
        return cls(likely * (1 - below), likely, likely * (1 + above))

    def scaled(self, factor: float) -> "Range":
        """Every end times a positive factor."""
        return Range(self.low * factor, self.likely * factor, self.high * factor)

    def plus(self, other: "Range | float") -> "Range":
        """Sum of ends; a float counts as exact."""
        if isinstance(other, Range):
            return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)
        return Range(self.low + other, self.likely + other, self.high + other)

    def inverse(self, numerator: float = 1.0) -> "Range":
        """numerator / self, ends swapped."""
        return Range(numerator / self.high, numerator / self.likely, numerator / self.low)


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of an estimate: id (a message id), value, formula text, values put in, source.

    `formula` is plain text in the symbols of `values`, so that `--explain` can print both the
    law and the numbers that went into it.
    """

    id: str
    value: float
    formula: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of one training process on one card.

    `terms` (bytes) add up to `allocated_bytes.likely` at `peak_phase`. Reserved is what the
    caching allocator holds, device what nvidia-smi shows: reserved + CUDA context + what lives
    outside torch.
    """

    engine: str  # "formula" or "dryrun"
    model_bytes: int  # resident before the first step
    allocated_bytes: Range
    reserved_bytes: Range
    device_bytes: Range
    peak_phase: str  # forward, loss, backward, optimizer, evaluation
    terms: tuple[Term, ...] = ()
    trainable_params: int = 0
    notes: tuple[str, ...] = ()  # message ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Speed of one optimizer step over all cards. `terms` are seconds of one step.

    `tokens_per_s` counts all tokens of the micro-batches (padding included) over all cards.
    `bound` names what limits the step: compute, bandwidth, launch, link.
    """

    engine: str
    step_seconds: Range
    tokens_per_s: Range
    terms: tuple[Term, ...] = ()
    bound: str = "compute"
    notes: tuple[str, ...] = ()
