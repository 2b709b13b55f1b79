"""The facts of a recipe, looked up in the catalogs: the one place where a plan meets files.

Every command that needs a plan (`plan`, `train`, `audit`) gathers through here, so that they all
look at the same cards, offers and rates.
"""

from collections.abc import Sequence

from loracle import __version__
from loracle.catalog.fx import load_rates
from loracle.catalog.gpus import find_gpu, load_gpus
from loracle.catalog.models import find_model
from loracle.catalog.offers import find_offer, load_offers
from loracle.domain.model import ModelShape
from loracle.domain.offer import Offer
from loracle.domain.plan import DataFacts
from loracle.domain.recipe import Recipe
from loracle.planner.packing import asks_to_pack
from loracle.planner.plan import Facts


def gather(recipe: Recipe, *, today: str, offline: bool = False, skip_bad: bool = False) -> Facts:
    """The facts that `make_plan` needs for a recipe, on `today` (ISO date).

    `skip_bad` leaves out rows of the data that cannot be used (and counts them) where else they
    are an error.

    Raises CatalogError for a model, card or offer that is not known, and what reading the data set
    raises (DataError, InputError).
    """
    shape = find_model(recipe.model, offline=offline)
    return Facts(
        shape=shape,
        gpus=load_gpus(),
        offers=_offers(recipe.rent.offers),
        rates=load_rates(),
        today=today,
        data=_data(recipe.data.train, recipe, shape, skip_bad),
        eval_data=_data(recipe.data.eval, recipe, shape, skip_bad),
        wanted=tuple(dict.fromkeys(find_gpu(name).id for name in recipe.rent.gpus)),
        versions={"loracle": __version__},
    )


def _offers(ids: Sequence[str]) -> tuple[Offer, ...]:
    if ids:
        return tuple(find_offer(one) for one in dict.fromkeys(ids))
    return load_offers()


def _data(path: str | None, recipe: Recipe, shape: ModelShape, skip_bad: bool) -> DataFacts | None:
    if path is None:
        return None
    from loracle.catalog.datasets import data_facts

    return data_facts(
        path,
        seq_len=recipe.training.seq_len,
        packing=asks_to_pack(recipe),
        model=recipe.model,
        vocab_size=shape.vocab_size,
        format=recipe.data.format,
        skip_bad=skip_bad,
    )
