"""Whether loracle's trainer will pack a model on a card: what it proves later, foretold.

`loracle train` asks the loaded model whether packed documents see each other, and trains without
packing where they do (`jobs/train/isolation.py`). A plan that packed all the same would promise a
time and a cost that the run cannot keep, so the same choice is made here from the catalog's facts.
"""

from collections.abc import Iterator, Sequence

from loracle.domain.plan import DataFacts, Hint
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.planner.seat import Seat
from loracle.planner.work import workload

FLASH_SINCE = (8, 0)  # the compute capability that torch's variable-length kernel wants


def asks_to_pack(recipe: Recipe) -> bool:
    """Whether the recipe wants packed rows, on a stack that makes them."""
    return recipe.training.packing and recipe.stack != "hf-trainer"


def can_pack(setup: TrainingSetup, capability: tuple[int, int]) -> bool:
    """Whether documents stay apart in a layout that the trainer has for this setup and card.

    FlashAttention-2 is told the documents' bounds in the way that the flat layout is, and has not
    been tried apart from it. Only loracle's trainer proves anything: TRL packs whatever the model
    does with it, and a plan for that stack says what it will do.
    """
    if setup.stack != "loracle":
        return True
    return any(layout in setup.model.keeps_apart for layout in _layouts(setup, capability))


def packing_hints(recipe: Recipe, seats: Sequence[Seat], data: DataFacts) -> Iterator[Hint]:
    """Where the recipe asks for packing and the model mixes packed documents: what that costs.

    `seats` are in the order of recommendation; the first one speaks for the plan.
    """
    if not asks_to_pack(recipe):
        return
    setup, gpu = seats[0].choice.setup, seats[0].place.gpu
    values: dict[str, object] = {"architecture": setup.model.model_type}
    if not setup.packing and data.num_samples == 0:
        yield Hint(id="advice.unpacked_no_data", values=values)
        return
    if not setup.packing:
        packed = workload(recipe, data, packing=True).sequences_per_epoch.likely
        values |= {"sequences": data.num_samples, "packed": int(packed)}
        yield Hint(id="advice.unpacked", values={**values, "share": data.padding_share})
        return
    if _packs_by_mask(setup, gpu.compute_capability):
        yield Hint(id="advice.packed_by_mask", values=values)
    unpacked = {seat.place.gpu.name for seat in seats if not seat.choice.setup.packing}
    if unpacked:
        values |= {"cards": sorted(unpacked), "share": data.padding_share}
        yield Hint(id="advice.unpacked_elsewhere", values=values)


def _packs_by_mask(setup: TrainingSetup, capability: tuple[int, int]) -> bool:
    """Whether it packs by a block mask on a card whose flat kernel would serve other models."""
    layouts = _layouts(setup, capability)
    return (
        setup.packing
        and setup.stack == "loracle"
        and "flat" in layouts
        and "flat" not in setup.model.keeps_apart
    )


def _layouts(setup: TrainingSetup, capability: tuple[int, int]) -> tuple[str, ...]:
    """The layouts in which the trainer can lay packed rows, fastest first."""
    if setup.attention == "flash_attention_2":
        return ("flat",)
    if (
        setup.attention == "sdpa"
        and capability >= FLASH_SINCE
        and setup.model.attention_softcap is None
        and not setup.kbit_upcast
    ):
        return ("flat", "rows")
    return ("rows",)
