"""Whether loracle's trainer will pack a model on a card: what it proves later, foretold.

`loracle train` asks the loaded model whether packed documents see each other, and trains without
packing where they do (`jobs/train/isolation.py`). A plan that packed all the same would promise a
time and a cost that the run cannot keep, so the same choice is made here from the catalog's facts.
"""

from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup

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


def packs_by_mask(setup: TrainingSetup, capability: tuple[int, int]) -> bool:
    """Whether it packs by a block mask on a card whose flat kernel would serve other models."""
    layouts = _layouts(setup, capability)
    return (
        setup.packing
        and setup.stack == "loracle"
        and "flat" in layouts
        and "flat" not in setup.model.keeps_apart
    )


def padded_rows(setup: TrainingSetup, capability: tuple[int, int]) -> int:
    """How many sequences are padded to the longest of them: one where nothing is.

    Lying flat, the rows of a micro-batch need no padding, packed or not.
    """
    flat = "flat" in _layouts(setup, capability) and "flat" in setup.model.keeps_apart
    return 1 if setup.stack == "loracle" and flat else setup.micro_batch


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
