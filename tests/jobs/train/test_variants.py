"""Quantised bases and the variants of LoRA: trained, stopped, resumed with the same losses, loaded.

bitsandbytes computes 4 and 8 bits on a processor too, so these are real runs.
"""

import pytest
import torch

from loracle.jobs.train.process import train_run

VARIANTS = {
    "nf4": {"method": "qlora", "quant": {"type": "nf4", "double": False}},
    "nf4-double": {"method": "qlora"},
    "int8": {"method": "qlora", "quant": {"type": "int8"}},
    "dora": {"lora": {"use_dora": True}},
    "rslora": {"lora": {"use_rslora": True}},
    "qdora": {"method": "qlora", "lora": {"use_dora": True}},
    "upcast": {"method": "qlora", "training": {"kbit_upcast": True}},
    "rslora-int8": {"method": "qlora", "quant": {"type": "int8"}, "lora": {"use_rslora": True}},
}

SLOW = ("nf4", "rslora-int8", "upcast")  # each is a mixture of two others


def load(run, place):
    """The setup, and the base stored as it says, with the run's adapter."""
    from peft import PeftModel

    from loracle.domain.recipe_text import read_recipe
    from loracle.jobs.train.model import load_base
    from loracle.jobs.train.settle import settle

    recipe = read_recipe(run.recipe.read_bytes(), str(run.recipe)).recipe
    setup = settle(run, recipe, None).setup
    base = load_base(str(place / "model"), setup, torch.device("cpu"))
    return setup, PeftModel.from_pretrained(base, run.adapter).eval()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in VARIANTS],
)
def test_a_variant_trains_resumes_and_loads(name, make_run, losses, place, stop_at):
    groups = VARIANTS[name]
    evaluation = {"data": {"eval": str(place / "eval.jsonl")}, "evaluation": {"every_steps": 2}}
    groups = (
        groups
        | evaluation
        | {
            "training": {"steps": 6} | groups.get("training", {}),
            "lora": {"dropout": 0.1} | groups.get("lora", {}),
        }
    )
    whole = make_run("whole", **groups)
    assert train_run(whole, resume=False).state == "finished"
    cut = make_run("cut", **groups)
    stop_at(cut, 2)
    assert train_run(cut, resume=False).state == "stopped"
    assert train_run(cut, resume=True).state == "finished"
    assert losses(cut) == losses(whole)
    assert losses(whole)[6] < losses(whole)[1]
    setup, tuned = load(whole, place)
    lora = tuned.peft_config["default"]
    assert (lora.use_dora, lora.use_rslora) == (setup.lora.use_dora, setup.lora.use_rslora)
    kinds = {type(one).__name__ for one in tuned.modules()}
    wanted = {None: "Linear", "int8": "Linear8bitLt"}.get(setup.quant, "Linear4bit")
    assert wanted in kinds
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        after = tuned(ids).logits
        with tuned.disable_adapter():
            before = tuned(ids).logits
    assert after.isfinite().all()
    assert (after - before).abs().max() > 1e-3


def test_the_upcast_that_the_plan_counts_is_made(make_run, place):
    """What is not quantised, head and embeddings included, goes to fp32 as PEFT does it."""
    run = make_run(**VARIANTS["upcast"])
    assert train_run(run, resume=False).state == "finished"
    _, tuned = load(run, place)
    assert tuned.get_input_embeddings().weight.dtype == torch.float32
    assert tuned.get_output_embeddings().weight.dtype == torch.float32


def test_gradients_go_on_after_an_evaluation_of_a_4_bit_base(make_run, place):
    """bitsandbytes repacks such weights for a processor's evaluation, and then has no gradient."""
    evaluation = {"data": {"eval": str(place / "eval.jsonl")}, "evaluation": {"every_steps": 1}}
    run = make_run(method="qlora", training={"steps": 4}, **evaluation)
    train_run(run, resume=False)
    assert all(event["grad_norm"] > 0 for event in run.events("step"))
