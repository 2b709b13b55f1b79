"""The measured card in the plan's place: what moves, what stays, on figures worked out by hand."""

from dataclasses import replace
from decimal import Decimal

import pytest

from loracle.catalog.fx import load_rates
from loracle.catalog.gpus import find_gpu
from loracle.domain.gpu import Node
from loracle.domain.money import Money
from loracle.domain.offer import Offer, Price
from loracle.domain.recipe_text import parse_recipe
from loracle.jobs.audit.observation import Card, Rates, Soak
from loracle.jobs.audit.rescore import candidate_for, measured_gpu, needs_of, rescore
from loracle.planner.gather import gather
from loracle.planner.plan import make_plan

GPU = find_gpu("rtx-4090")
TODAY = "2026-11-30"
RATE = GPU.gemm_flops_per_s["bfloat16"]


def card(*, burst=RATE, kept=1.0, copy=None):
    seconds = tuple(float(at) for at in range(1, 181))
    rates = tuple(burst if at < 60 else burst * kept for at in seconds)
    return Card(
        index=0,
        nvml={"name": "NVIDIA GeForce RTX 4090", "pci": {"device_id": "2684"}},
        gemm=Rates(repeats=(burst,), dtype="bfloat16"),
        bandwidth=Rates(repeats=(copy,)) if copy else None,
        soak=Soak(seconds=seconds, flops_per_s=rates),
    )


@pytest.fixture(scope="module")
def plan():
    recipe = parse_recipe(
        "", "test", {"model": "Qwen/Qwen3-8B", "data.tokens": 2_000_000, "rent.gpus": ["rtx-4090"]}
    )
    return make_plan(recipe, gather(recipe, today=TODAY))


def test_the_matrix_rate_is_the_burst_times_what_the_soak_kept():
    found = measured_gpu(GPU, card(burst=0.9 * RATE, kept=0.8))
    assert found.gemm_flops_per_s["bfloat16"] == pytest.approx(0.72 * RATE)
    assert found.bandwidth_bytes_per_s == GPU.bandwidth_bytes_per_s


def test_a_power_limit_bites_at_once_and_still_counts():
    """Burst as the catalog says, steady load at 0.7 of it from the start: 0.7 / 0.83 is kept."""
    seconds = tuple(float(at) for at in range(1, 181))
    capped = replace(card(), soak=Soak(seconds=seconds, flops_per_s=(0.7 * RATE,) * 180))
    found = measured_gpu(GPU, capped)
    assert found.gemm_flops_per_s["bfloat16"] == pytest.approx(0.7 / 0.83 * RATE)


def test_bandwidth_can_only_be_taken_away():
    """0.85 of the sheet is what a good 4090 copies; half of that is half the bandwidth."""
    good = 0.85 * GPU.bandwidth_bytes_per_s
    assert measured_gpu(GPU, card(copy=good / 2)).bandwidth_bytes_per_s == pytest.approx(
        GPU.bandwidth_bytes_per_s / 2
    )
    assert measured_gpu(GPU, card(copy=1.1 * good)).bandwidth_bytes_per_s == (
        GPU.bandwidth_bytes_per_s
    )


def test_without_a_measured_rate_nothing_is_scored():
    assert measured_gpu(GPU, Card(index=0)) is None


def test_training_takes_longer_and_the_rest_does_not(plan):
    candidate = candidate_for(plan, ("rtx-4090",), 1)
    scored = rescore(
        plan, candidate, GPU, [card(kept=0.7)], offer=None, rates=load_rates(), today=TODAY
    )
    moved = {"train", "evaluate", "restarts"}
    phases = {phase.id: phase.seconds.likely for phase in candidate.timeline}
    longer = sum(seconds for name, seconds in phases.items() if name in moved)
    same = sum(seconds for name, seconds in phases.items() if name not in moved)
    assert 0.7 < scored.speed_share < 1  # not all of a step is matrix products
    assert scored.measured_seconds == pytest.approx(same + longer / scored.speed_share)
    assert scored.planned_seconds == pytest.approx(same + longer)
    assert scored.planned_cost is None


def test_the_slowest_card_sets_the_pace(plan):
    candidate = candidate_for(plan, ("rtx-4090",), 1)
    slow = rescore(
        plan, candidate, GPU, [card(), card(kept=0.7)], offer=None, rates=(), today=TODAY
    )
    alone = rescore(plan, candidate, GPU, [card(kept=0.7)], offer=None, rates=(), today=TODAY)
    assert slow == alone


def test_cost_follows_the_offer(plan):
    from loracle.estimate.money import job_cost

    offer = Offer(
        id="by-the-hour", provider="x", node=Node(gpu_id="rtx-4090"), bills_whole_terms=False,
        prices=(Price(term="hour", amount=Money.of("2", "CNY"), period="hour"),), as_of=TODAY,
    )  # fmt: skip
    candidate = candidate_for(plan, ("rtx-4090",), 1)
    cost = job_cost(offer, "hour", candidate.seconds, rates=(), currency="CNY", today=TODAY)
    priced = replace(candidate, cost=cost, offer_id=offer.id)
    scored = rescore(plan, priced, GPU, [card(kept=0.7)], offer=offer, rates=(), today=TODAY)
    hours = scored.measured_seconds / 3600
    assert Decimal(scored.measured_cost) == pytest.approx(Decimal(2 * hours), rel=Decimal("0.01"))
    assert Decimal(scored.planned_cost) < Decimal(scored.measured_cost)


def test_needs_are_those_of_the_candidate(plan):
    candidate = candidate_for(plan, ("rtx-4090",), 1)
    needs = needs_of(plan, candidate)
    assert needs.device_bytes == candidate.memory.device_bytes.likely
    assert needs.quantised
    # 16 GB of weights to download, 16 GB of merged model, five checkpoints of an adapter
    assert 33e9 < needs.disk_bytes < 40e9
    assert not needs.moves_weights


def test_another_card_has_no_candidate(plan):
    assert candidate_for(plan, ("t4",), 1) is None
