"""Models whose packed documents would see each other: planned as they will be trained."""

import pytest

from loracle import words
from loracle.domain.estimate import Range
from loracle.domain.plan import DataFacts
from loracle.domain.recipe import Recipe
from loracle.errors import EngineError
from loracle.planner.packing import can_pack, padded_rows
from loracle.planner.plan import Facts, make_plan
from loracle.planner.resolve import on_card, resolve

FALCON, OPT, STABLELM = "tiiuae/falcon-7b", "facebook/opt-6.7b", "stabilityai/stablelm-3b-4e1t"
DATA = DataFacts(
    num_samples=1000, tokens=Range.exact(300_000), tokens_kept=Range.exact(300_000),
    counted_by="tokenizer", length_percentiles={50: 200, 90: 600, 95: 900, 99: 1500, 100: 2000},
    padding_share=0.6, packed_sequences=150,
)  # fmt: skip


def setup_of(shape, **recipe):
    return resolve(Recipe.model_validate({"model": "m", **recipe}), shape)


@pytest.mark.parametrize(
    ("name", "t4", "rtx_3090"),
    [
        ("Qwen/Qwen3-8B", True, True),
        (FALCON, False, False),
        ("bigscience/bloomz-7b1", False, False),
        ("mosaicml/mpt-7b", False, False),
        ("Qwen/Qwen3.5-9B", False, False),
        ("openai/gpt-oss-20b", False, False),
        (OPT, False, True),
        (STABLELM, True, True),
    ],
)
def test_which_models_pack_on_which_cards(model, gpus, name, t4, rtx_3090):
    setup = setup_of(model(name))
    assert on_card(setup, gpus["t4"]).packing is t4
    assert on_card(setup, gpus["rtx-3090"]).packing is rtx_3090


@pytest.mark.parametrize(
    ("name", "attention", "packs"),
    [
        (OPT, "sdpa", True),
        (OPT, "eager", False),
        (OPT, "flash_attention_2", True),
        (STABLELM, "eager", True),
        (STABLELM, "flash_attention_2", False),
    ],
)
def test_the_kernel_decides_with_the_card(model, name, attention, packs):
    setup = setup_of(model(name), training={"attention": attention})
    assert can_pack(setup, (8, 6)) is packs
    assert setup.packing is packs


def test_a_softcap_and_an_upcast_leave_only_rows(model):
    """Both keep the variable-length kernel away, in which alone OPT's documents are apart."""
    setup = setup_of(model(OPT))
    assert not can_pack(setup.with_changes(kbit_upcast=True), (8, 6))
    assert setup_of(model("google/gemma-2-9b")).packing


def test_trl_packs_whatever_the_model_does_with_it(model):
    assert setup_of(model(FALCON), stack="trl").packing


def test_packing_that_was_not_asked_for_is_not_spoken_of(plan_of):
    recipe = {"model": FALCON, "training": {"packing": False}}
    plan = plan_of(recipe, over=("autodl-4090",), data=DATA)
    assert not any("unpacked" in hint.id for hint in plan.hints)
    assert plan.candidates[0].filled is None or not plan.candidates[0].filled.setup.packing


def test_a_model_that_mixes_documents_is_planned_without_packing(plan_of):
    plan = plan_of({"model": FALCON}, over=("autodl-4090",), data=DATA)
    assert plan.num_steps == 3 * 63  # ceil(1000 / 16), three epochs
    rows = plan.candidates[0].setup.micro_batch
    length = {1: 300, 2: 450, 4: 600, 8: 750, 16: 900}[rows]  # 300 / (1 - 0.6) at 8, none at 1
    assert plan.total_tokens.likely == 3 * 63 * 16 * length
    assert not plan.setup.packing
    assert not plan.candidates[0].setup.packing
    assert plan.candidates[0].setup.seq_len == 2000  # the longest sample: the peak is its
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.unpacked"]
    assert hint.values == {
        "architecture": "falcon", "sequences": 1000, "packed": 150, "share": 1 - 300 / length,
    }  # fmt: skip
    assert not any(hint.id == "advice.padding" for hint in plan.hints)  # it cannot pack


def test_rows_that_lie_flat_are_not_padded(model, gpus):
    """OPT unpacked: padded on a T4, laid in one row on a card with the variable-length kernel."""
    setup = setup_of(model(OPT), training={"packing": False, "micro_batch": 4})
    assert padded_rows(setup, gpus["t4"].compute_capability) == 4
    assert padded_rows(setup, gpus["rtx-3090"].compute_capability) == 1
    assert padded_rows(setup.with_changes(stack="trl"), (8, 6)) == 4
    assert padded_rows(setup_of(model(FALCON)).with_changes(micro_batch=4), (8, 6)) == 4


def test_without_data_the_padding_is_not_known(plan_of):
    plan = plan_of({"model": FALCON}, over=("autodl-4090",))
    assert [hint.id for hint in plan.hints if "packed" in hint.id] == ["advice.unpacked_no_data"]


def test_one_model_packs_on_one_card_and_not_on_another(plan_of):
    plan = plan_of({"model": OPT}, over=(), wanted=("t4", "rtx-3090"), data=DATA)
    by_card = {one.gpu_id: one for one in plan.candidates}
    assert by_card["rtx-3090"].setup.packing
    assert not by_card["t4"].setup.packing
    assert (by_card["rtx-3090"].setup.seq_len, by_card["t4"].setup.seq_len) == (2048, 2000)
    assert plan.num_steps == 3 * 10  # ceil(150 / 16): the first card's
    (hint,) = [hint for hint in plan.hints if hint.id == "advice.unpacked_elsewhere"]
    assert hint.values == {"architecture": "opt", "cards": ["Tesla T4"], "sequences": 1000}
    alone = plan_of({"model": OPT}, over=(), wanted=("t4",), data=DATA)
    assert alone.num_steps == 3 * 63
    assert any(hint.id == "advice.unpacked" for hint in alone.hints)


def test_packing_by_a_mask_is_said(plan_of):
    plan = plan_of({"model": STABLELM}, over=("autodl-4090",), data=DATA)
    assert plan.candidates[0].setup.packing
    assert any(hint.id == "advice.packed_by_mask" for hint in plan.hints)
    filled = plan.candidates[0].filled
    assert filled is None or filled.setup.attention == "sdpa"  # the other kernel would unpack it


def test_the_exact_engine_leaves_a_plan_where_it_cannot_follow(model, gpus):
    """StableLM's layers drop the bounds: the dry run says so, and the formula's figures stay."""
    from loracle.dryrun.trace import trace

    refused = []

    def tracer(setup, gpu):
        try:
            return trace(setup, capability=gpu.compute_capability)
        except EngineError as error:
            refused.append(error.message)
            raise

    card = gpus["rtx-3090"]
    recipe = Recipe.model_validate({"model": STABLELM, "training": {"micro_batch": 1}})
    facts = Facts(
        shape=model(STABLELM), gpus=(card,), offers=(), rates=(), today="2026-01-15",
        data=DATA, wanted=(card.id,),
    )  # fmt: skip
    plan = make_plan(recipe, facts, tracer=tracer, fill_cards=0)
    assert refused == ["dryrun.no_bounds"]
    assert plan.engine == "formula"
    assert plan.best == 0
    assert plan.hints[0].id == "advice.no_dry_run"
    assert words.has(str(plan.hints[0].values["message"]))
