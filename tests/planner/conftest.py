"""Real models, cards, offers and laws for the planner's tests; nothing is made up but recipes."""

import pytest

from loracle.catalog.fx import load_rates
from loracle.catalog.gpus import load_gpus
from loracle.catalog.models import find_model
from loracle.catalog.offers import load_offers
from loracle.domain.recipe import Recipe
from loracle.planner.laws import formula_laws
from loracle.planner.plan import Facts, make_plan

TODAY = "2026-01-15"


@pytest.fixture(scope="session")
def gpus():
    return {gpu.id: gpu for gpu in load_gpus()}


@pytest.fixture(scope="session")
def offers():
    return {offer.id: offer for offer in load_offers(live=False)}


@pytest.fixture(scope="session")
def laws():
    return formula_laws()


@pytest.fixture(scope="session")
def model():
    return lambda name: find_model(name, offline=True)


@pytest.fixture(scope="session")
def plan_of(gpus, offers, laws, model):
    """Plan a recipe given as plain data, over the offers named (all shipped ones by default)."""

    def make(recipe, *, over=None, wanted=(), data=None, eval_data=None):
        full = Recipe.model_validate({"data": {"tokens": 2_000_000}, **recipe})
        facts = Facts(
            shape=model(full.model),
            gpus=tuple(gpus.values()),
            offers=tuple(offers.values() if over is None else (offers[one] for one in over)),
            rates=load_rates(),
            today=TODAY,
            data=data,
            eval_data=eval_data,
            wanted=tuple(wanted),
            versions={"loracle": "test"},
        )
        return make_plan(full, facts, laws=laws)

    return make
