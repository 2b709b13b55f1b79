"""The bench from the catalogs: all that the checks need, loaded once."""

from loracle.catalog.fx import load_rates
from loracle.catalog.gpus import load_gpus
from loracle.catalog.measured import shipped_runs
from loracle.catalog.models import find_model
from loracle.catalog.offers import load_offers
from loracle.planner.claims.figures import CARDS, MODELS, Bench
from loracle.planner.laws import formula_laws


def bench(today: str) -> Bench:
    """Shipped models, cards, offers and measured runs, and the formula laws, on a date (ISO)."""
    return Bench(
        models={size: find_model(name, offline=True) for size, name in MODELS.items()},
        gpus={gpu.id: gpu for gpu in load_gpus() if gpu.id in CARDS},
        offers={offer.id: offer for offer in load_offers(live=False)},
        rates=load_rates(),
        today=today,
        laws=formula_laws(),
        runs={run.id: run for run in shipped_runs()},
    )
