"""What a claim is checked with: models, cards and offers at hand, and one figure beside another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

from loracle.domain.estimate import Range
from loracle.domain.gpu import Gpu, Node
from loracle.domain.measured import MeasuredRun
from loracle.domain.model import ModelShape
from loracle.domain.money import FxRate
from loracle.domain.offer import Offer
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.planner.laws import Laws
from loracle.planner.resolve import resolve

MODELS = {
    "7b": "meta-llama/Llama-2-7b-hf",
    "13b": "meta-llama/Llama-2-13b-hf",
    "33b": "huggyllama/llama-30b",
    "34b": "01-ai/Yi-34B",
    "70b": "meta-llama/Llama-2-70b-hf",
}
CARDS = ("rtx-3090", "rtx-4090", "a100-40gb-pcie", "a100-80gb-sxm", "h100-80gb-pcie", "t4")


@dataclass(frozen=True, slots=True)
class Figure:
    """Our value for one figure of a claim; `how` is the setting it belongs to, untranslated."""

    ours: Range
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The models by size, cards, offers and measured runs by id, and the laws to ask."""

    models: Mapping[str, ModelShape]
    gpus: Mapping[str, Gpu]
    offers: Mapping[str, Offer]
    rates: tuple[FxRate, ...]
    today: str
    laws: Laws
    runs: Mapping[str, MeasuredRun]

    def setup(
        self, size: str, recipe: Mapping[str, object] | None = None, /, **knobs: object
    ) -> TrainingSetup:
        """A setup of the model of that size: the default recipe, with knobs of the setup turned."""
        base = Recipe.model_validate({"model": MODELS[size], **(recipe or {})})
        return resolve(base, self.models[size]).with_changes(**knobs)

    def device_bytes(self, setup: TrainingSetup, card: str = "rtx-4090") -> Range:
        """Memory that nvidia-smi would show on a card."""
        return self.laws.memory(setup, self.gpus[card]).device_bytes

    def step_seconds(self, setup: TrainingSetup, card: str, num_gpus: int = 1) -> Range:
        """Time of one optimizer step on one or several of a card."""
        node = Node(gpu_id=card, num_gpus=num_gpus)
        return self.laws.speed(setup, self.gpus[card], node).step_seconds

    def tokens_per_s(self, setup: TrainingSetup, card: str) -> Range:
        """Speed on one card."""
        return self.laws.speed(setup, self.gpus[card], Node(gpu_id=card)).tokens_per_s


def spread(ranges: Sequence[Range]) -> Range:
    """From the lowest low to the highest high, likely in the middle of the likelies."""
    likelies = [one.likely for one in ranges]
    middle = (min(likelies) + max(likelies)) / 2
    return Range(min(r.low for r in ranges), middle, max(r.high for r in ranges))


def ratio(left: Range, right: Range) -> Range:
    """left / right on one card, where both err the same way, so that the errors cancel."""
    return Range.exact(left.likely / right.likely)


def between_cards(left: Range, right: Range) -> Range:
    """left / right on two cards, whose rates are known with independent errors.

    The relative errors of both are added as squares.
    """
    likely = left.likely / right.likely
    below = hypot(1 - left.low / left.likely, right.high / right.likely - 1)
    above = hypot(left.high / left.likely - 1, 1 - right.low / right.likely)
    return Range(likely * max(0.0, 1 - below), likely, likely * (1 + above))
