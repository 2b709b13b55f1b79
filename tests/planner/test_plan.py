"""Whole plans on real facts: what is recommended, why, and that a plan survives its JSON."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loracle.domain.estimate import Range
from loracle.domain.plan import DataFacts
from loracle.errors import InputError, RecipeError
from loracle.planner.plan_json import plan_document, read_plan
from loracle.planner.plan_json import plan_of as read_document
from loracle.planner.recipe_out import resolved_recipe

QWEN = "Qwen/Qwen3-8B"
BY_THE_MONTH = ("idc10000-3090", "idc10000-a100-40g", "shenzhen-4090", "home-4090")


def by_id(plan):
    return {one.offer_id: one for one in plan.candidates}


def test_the_cheapest_is_first_and_the_fastest_is_named(plan_of):
    plan = plan_of({"model": QWEN, "data": {"tokens": 50_000_000}}, over=BY_THE_MONTH[:3])
    first, *others = [one for one in plan.candidates if one.rank]
    assert first.rank == 1
    assert plan.best == 0
    assert "cheapest" in first.labels
    assert all(first.cost.likely.amount <= one.cost.likely.amount for one in others)
    fastest = min((first, *others), key=lambda one: one.seconds.likely)
    assert "fastest" in fastest.labels
    assert fastest.offer_id == "idc10000-a100-40g"


def test_dominated_means_slower_and_dearer(plan_of):
    plan = plan_of({"model": QWEN})
    ranked = {one.rank: one for one in plan.candidates if one.rank}
    dominated = [one for one in ranked.values() if "dominated" in one.labels]
    assert dominated
    for one in dominated:
        better = ranked[one.dominated_by]
        assert better.cost.likely.amount <= one.cost.likely.amount
        assert better.seconds.likely <= one.seconds.likely


def test_a_risky_host_is_not_recommended_unless_named(plan_of):
    cheap = ("home-4090", "shenzhen-4090")
    assert by_id(plan_of({"model": QWEN}, over=cheap))["home-4090"].rank is None
    named = {"model": QWEN, "rent": {"offers": ["home-4090"]}}
    assert by_id(plan_of(named, over=("home-4090",)))["home-4090"].rank == 1


def test_nothing_is_trained_on_a_software_slice(plan_of):
    """Not even what would fit: a share that others can take is nobody's."""
    plan = plan_of({"model": "HuggingFaceTB/SmolLM2-135M"}, over=("idc10000-a100-slice-4g",))
    (only,) = plan.candidates
    assert only.fit == "fits"
    assert "shared" in only.labels
    assert plan.best is None
    assert [hint.id for hint in plan.hints if "slice" in hint.id] == ["advice.slice_shared"]


def test_a_slice_that_is_too_small_says_what_it_lacks(plan_of):
    plan = plan_of({"model": QWEN}, over=("idc10000-a100-slice-4g", "idc10000-3090"))
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.slice_too_small"]
    assert hint.values["usable_bytes"] < hint.values["weights_bytes"] < hint.values["need_bytes"]


def test_three_thousand_a_month_for_13b(plan_of):
    """Claim A-R5: it is enough; what is left is said."""
    recipe = {"model": "meta-llama/Llama-2-13b-hf", "rent": {"budget": "3000CNY/month"}}
    plan = plan_of(recipe, over=("idc10000-3090",))
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.budget"]
    assert (hint.values["spent"], hint.values["left"]) == ("1750.00", "1250.00")


def test_the_rest_of_a_budget_goes_to_what_the_offer_lists(plan_of):
    recipe = {"model": "meta-llama/Llama-2-13b-hf", "rent": {"budget": "4000CNY/month"}}
    plan = plan_of(recipe, over=("idc10000-a100-40g",))
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.spend_rest"]
    assert hint.values["add_ons"] == ["16-cores", "200mbit"]  # 400 and 400 of the 1,200 left
    assert hint.values["left"] == "400.00"


def test_over_budget(plan_of):
    recipe = {"model": QWEN, "rent": {"budget": "1000CNY/month"}}
    plan = plan_of(recipe, over=BY_THE_MONTH[:3])
    assert plan.best is None
    assert plan.verdict.id == "verdict.over_budget"
    assert all("over_budget" in one.labels for one in plan.candidates)


def test_a_job_budget_counts_the_whole_job(plan_of):
    recipe = {"model": QWEN, "rent": {"budget": "1750CNY"}}
    plan = plan_of(recipe, over=BY_THE_MONTH[:3])
    assert plan.candidates[plan.best].offer_id == "idc10000-3090"


def test_too_late(plan_of):
    plan = plan_of({"model": QWEN, "rent": {"deadline": "5min"}}, over=BY_THE_MONTH[:3])
    assert (plan.best, plan.verdict.id) == (None, "verdict.late")


def test_a_deadline_picks_the_card_that_makes_it(plan_of):
    slow = plan_of({"model": QWEN}, over=BY_THE_MONTH[:3])
    fastest = min(slow.candidates, key=lambda one: one.seconds.likely)
    minutes = round(fastest.seconds.likely / 60) + 1
    plan = plan_of({"model": QWEN, "rent": {"deadline": f"{minutes}min"}}, over=BY_THE_MONTH[:3])
    assert plan.candidates[plan.best].offer_id == fastest.offer_id


def test_a_budget_in_a_currency_without_a_rate(plan_of):
    with pytest.raises(InputError) as caught:
        plan_of({"model": QWEN, "rent": {"budget": "5JPY"}}, over=BY_THE_MONTH)
    assert caught.value.code == "E017"


def test_a_card_without_an_offer_has_a_time_and_no_price(plan_of):
    plan = plan_of({"model": QWEN}, over=(), wanted=("l40s",))
    (only,) = plan.candidates
    assert (only.cost, only.rank, plan.verdict.id) == (None, 1, "verdict.rent_unpriced")


def test_a_bigger_job_is_sharded_over_cards_that_are_sold_alone(plan_of):
    plan = plan_of({"model": "meta-llama/Llama-2-70b-hf"}, over=("idc10000-3090",))
    best = plan.candidates[plan.best]
    assert best.num_gpus > 1
    assert best.setup.parallel == "fsdp"
    assert best.cost.estimated
    assert best.cost.unit_price.amount == 1750 * best.num_gpus


def test_nothing_fits_says_what_is_needed(plan_of):
    recipe = {"model": "Qwen/Qwen3-235B-A22B", "rent": {"max_gpus": 1}}
    plan = plan_of(recipe, over=("idc10000-3090",))
    assert (plan.best, plan.verdict.id) == (None, "verdict.nothing_fits")
    assert plan.verdict.values["need_bytes"] > plan.verdict.values["usable_bytes"]


def test_the_knob_for_a_smaller_card_is_the_first_of_a_t2_that_works(plan_of):
    recipe = {"model": "huggyllama/llama-30b", "training": {"seq_len": 8192}}
    plan = plan_of(recipe, over=("idc10000-3090", "idc10000-a100-40g"))
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.knob"]
    assert hint.values["knobs"] == ["seq_len"]
    assert hint.values["offer_id"] == "idc10000-3090"
    assert hint.values["need_bytes"] < by_id(plan)["idc10000-3090"].usable_bytes


def test_filling_the_card_is_faster_and_still_fits(plan_of):
    plan = plan_of({"model": QWEN}, over=BY_THE_MONTH[:3])
    best = plan.candidates[plan.best]
    assert best.filled.gain > 1.02
    assert best.filled.device_bytes.high <= best.usable_bytes
    setup = best.filled.setup
    assert setup.micro_batch * setup.grad_accum == 16
    assert best.filled.tokens_per_s.likely == pytest.approx(
        best.filled.gain * best.speed.tokens_per_s.likely
    )


def test_checkpointing_auto_takes_what_filling_finds(plan_of):
    recipe = {"model": QWEN, "training": {"gradient_checkpointing": "auto"}}
    best = plan_of(recipe, over=("shenzhen-4090",)).candidates[0]
    plain = plan_of({"model": QWEN}, over=("shenzhen-4090",)).candidates[0]
    assert best.speed.tokens_per_s.likely > plain.speed.tokens_per_s.likely
    assert best.fit == "fits"


def test_packing_counts_for_the_padding_it_saves(plan_of):
    data = DataFacts(
        num_samples=1000, tokens=Range.exact(300_000), tokens_kept=Range.exact(300_000),
        counted_by="tokenizer", length_percentiles={50: 200, 90: 600, 95: 900, 99: 1500, 100: 2000},
        padding_share=0.6, packed_sequences=150,
    )  # fmt: skip
    gains = {}
    for stack in ("trl", "loracle"):
        recipe = {"model": QWEN, "stack": stack, "training": {"packing": False, "micro_batch": 8}}
        best = plan_of(recipe, over=("shenzhen-4090",), data=data).candidates[0]
        assert best.filled.setup.packing
        gains[stack] = best.filled.gain
    assert gains["trl"] > 1 / (1 - 0.6)
    assert gains["loracle"] < 1.5  # its trainer lays rows flat here: nothing is padded


def test_hour_against_month_at_the_users_own_hours(plan_of):
    over = ("autodl-4090", "shenzhen-4090")
    plain = plan_of({"model": QWEN}, over=over)
    (hint,) = [hint for hint in plain.hints if hint.id == "advice.by_month_from"]
    assert hint.values["hours"] == pytest.approx(1880 / 2.72, abs=0.1)
    asked = plan_of({"model": QWEN, "rent": {"hours_per_month": 100}}, over=over)
    (hint,) = [hint for hint in asked.hints if hint.id == "advice.at_your_hours"]
    assert (hint.values["cost"], hint.values["per_month"]) == ("272.00", "1880.00")


def test_the_timeline_adds_up_and_is_billed(plan_of):
    best = plan_of({"model": QWEN}, over=("autodl-4090",)).candidates[0]
    assert best.seconds.likely == pytest.approx(sum(p.seconds.likely for p in best.timeline))
    hours = best.seconds.likely / 3600
    assert float(best.cost.likely.amount) == pytest.approx(2.72 * hours, abs=0.01)


def test_a_plan_reads_back_from_its_json(plan_of):
    for recipe in ({"model": QWEN}, {"model": QWEN, "rent": {"budget": "3000CNY/month"}}):
        plan = plan_of(recipe)
        text = json.dumps(plan_document(plan))
        assert read_plan(text) == plan


def test_json_is_in_base_units(plan_of):
    document = plan_document(plan_of({"model": QWEN}, over=("shenzhen-4090",)))
    assert document["schema"] == "loracle.plan/1"
    (row,) = document["candidates"]
    assert row["seconds"]["likely"] > 100
    assert 2e10 < row["usable_bytes"] < 3e10
    assert row["cost"]["likely"] == {"amount": "1880.00", "currency": "CNY"}
    assert "model" not in row["setup"]


@pytest.mark.parametrize(
    "document", [{}, {"schema": "loracle.plan/9"}, {"schema": "loracle.plan/1"}, [], 3]
)
def test_another_document_is_no_plan(document):
    with pytest.raises(InputError) as caught:
        read_document(document)
    assert caught.value.code == "E019"


def test_the_resolved_recipe_is_what_the_plan_chose(plan_of):
    plan = plan_of({"model": QWEN}, over=("shenzhen-4090",))
    recipe = resolved_recipe(plan)
    assert recipe["training"]["micro_batch"] == plan.candidates[0].setup.micro_batch
    again = plan_of(recipe, over=("shenzhen-4090",))
    assert again.candidates[0].setup == plan.candidates[0].setup


def test_targets_that_miss_layers_stop_the_plan(plan_of):
    with pytest.raises(RecipeError):
        plan_of({"model": "microsoft/Phi-3-mini-4k-instruct", "lora": {"targets": ["q_proj"]}})


QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(st.integers(1000, 10**9), st.sampled_from([512, 2048, 8192]), st.sampled_from([1, 4, 32]))
def test_more_tokens_never_cost_less(plan_of, tokens, seq_len, batch):
    def cost(count):
        recipe = {
            "model": "Qwen/Qwen3-0.6B",
            "data": {"tokens": count},
            "training": {"seq_len": seq_len, "effective_batch": batch},
        }
        plan = plan_of(recipe, over=("autodl-4090", "idc10000-3090"))
        return {one.offer_id: one.cost.likely.amount for one in plan.candidates}

    less, more = cost(tokens), cost(tokens * 3)
    assert all(less[offer] <= more[offer] for offer in less)


@QUICK
@given(
    st.sampled_from(["qlora", "lora", "full"]),
    st.sampled_from(["loracle", "trl", "hf-trainer"]),
    st.sampled_from([256, 1024, 4096]),
    st.sampled_from(["attention", "all-linear"]),
)
def test_ranges_are_ordered_and_the_rank_is_by_cost(plan_of, method, stack, seq_len, targets):
    recipe = {
        "model": "Qwen/Qwen3-1.7B", "method": method, "stack": stack,
        "training": {"seq_len": seq_len}, "lora": {"targets": targets},
    }  # fmt: skip
    plan = plan_of(recipe, over=("autodl-4090", "idc10000-3090", "modal-t4", "vast-a100-40g"))
    costs = [one.cost.likely.amount for one in plan.candidates if one.rank]
    assert costs == sorted(costs)
    for one in plan.candidates:
        if one.cost is not None:
            assert one.cost.low.amount <= one.cost.likely.amount <= one.cost.high.amount
        for phase in one.timeline:
            assert 0 <= phase.seconds.low <= phase.seconds.likely <= phase.seconds.high
