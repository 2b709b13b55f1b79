"""What a recipe comes to for a model: defaults of each stack, and targets that must be right."""

import pytest

from loracle.domain.recipe import Recipe
from loracle.errors import RecipeError
from loracle.planner.resolve import layers_hit, on_card, resolve


def setup_of(shape, **recipe):
    return resolve(Recipe.model_validate({"model": "m", **recipe}), shape)


def test_the_baseline_is_the_fields(model):
    """Claim A-T1: NF4, double quantisation, bf16, paged 8-bit AdamW, checkpointing."""
    setup = setup_of(model("Qwen/Qwen3-8B"))
    assert (setup.method, setup.quant, setup.base_dtype) == ("qlora", "nf4-double", "bfloat16")
    assert setup.optimizer == "paged_adamw_8bit"
    assert (setup.gradient_checkpointing, setup.checkpoint_every) == (True, 1)
    assert (setup.micro_batch, setup.grad_accum) == (1, 16)


@pytest.mark.parametrize(
    ("stack", "method", "dtype", "upcast"),
    [
        ("loracle", "qlora", "bfloat16", False),
        ("trl", "qlora", "bfloat16", False),
        ("trl", "lora", "float32", False),
        ("hf-trainer", "qlora", "float32", True),
        ("hf-trainer", "lora", "float32", False),
    ],
)
def test_adapters_and_upcast_by_stack(model, stack, method, dtype, upcast):
    setup = setup_of(model("Qwen/Qwen3-8B"), stack=stack, method=method)
    assert (setup.lora.dtype, setup.kbit_upcast) == (dtype, upcast)


def test_full_training_has_no_adapter_and_no_quantisation(model):
    setup = setup_of(model("Qwen/Qwen3-0.6B"), method="full")
    assert (setup.lora, setup.quant, setup.kbit_upcast) == (None, None, False)


def test_plain_trainer_does_not_pack(model):
    assert setup_of(model("Qwen/Qwen3-8B")).packing
    assert not setup_of(model("Qwen/Qwen3-8B"), stack="hf-trainer").packing


def test_older_cards_train_in_fp16_with_fp32_adapters(model, gpus):
    setup = setup_of(model("Qwen/Qwen3-8B"), training={"attention": "flash_attention_2"})
    old = on_card(setup, gpus["t4"])
    assert (old.base_dtype, old.autocast, old.lora.dtype) == ("float16", "float16", "float32")
    assert old.attention == "sdpa"
    assert on_card(setup, gpus["rtx-3090"]) is setup


def test_every_nth_layer(model):
    setup = setup_of(model("Qwen/Qwen3-8B"), training={"gradient_checkpointing": 4})
    assert (setup.gradient_checkpointing, setup.checkpoint_every) == (True, 4)


def faults(shape, **recipe):
    with pytest.raises(RecipeError) as caught:
        setup_of(shape, **recipe)
    assert caught.value.code == "E014"
    return {problem.message: problem.values for problem in caught.value.problems}


QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_the_usual_targets_miss_phi_3(model):
    """Its attention is fused: only o_proj exists, and PEFT would adapt it without a word."""
    found = faults(model("microsoft/Phi-3-mini-4k-instruct"), lora={"targets": QKVO})
    assert set(found) == {"plan.no_such_target"}
    assert found["plan.no_such_target"]["right"] == "qkv_proj, o_proj"


def test_the_usual_targets_reach_a_quarter_of_qwen_3_5(model):
    found = faults(model("Qwen/Qwen3.5-9B"), lora={"targets": QKVO})
    assert (found["plan.targets_miss_layers"]["hit"],
            found["plan.targets_miss_layers"]["layers"]) == (8, 32)  # fmt: skip
    assert "in_proj_qkv" in str(found["plan.targets_miss_layers"]["right"])


def test_partial_targets_can_be_meant(model):
    setup = setup_of(
        model("Qwen/Qwen3.5-9B"), lora={"targets": QKVO, "allow_partial": True}
    )  # fmt: skip
    assert setup.lora.targets == tuple(QKVO)


@pytest.mark.parametrize("name", ["lm_head", "model.lm_head"])
def test_the_head_takes_no_adapter(model, name):
    assert "plan.target_not_adaptable" in faults(
        model("Qwen/Qwen3-8B"), lora={"targets": [*QKVO, name]}
    )


def test_a_rank_wider_than_the_layers(model):
    found = faults(model("Qwen/Qwen3-0.6B"), lora={"rank": 4096})
    assert found["plan.rank_too_wide"]["rank"] == 4096


def test_attention_and_all_linear_reach_every_layer_of_every_model():
    from loracle.catalog.models import load_models

    for shape in load_models():
        for choice in ("attention", "all-linear"):
            assert layers_hit(shape, shape.targets(choice)) == shape.num_layers, shape.id
