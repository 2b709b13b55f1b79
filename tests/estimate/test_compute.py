"""FLOPs and bytes of small models, worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.compute import flops_per_token, step_ops
from loracle.estimate.params import adapted_rows, trained

TINY = shape_from_config(
    {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "tie_word_embeddings": False,
    }
)  # fmt: skip
# Linear parameters of one layer: q 64x64, k and v 64x32, o 64x64, gate, up and down 64x128.
LAYER = 4096 + 2 * 2048 + 4096 + 3 * 8192
HEAD = 64 * 1000
ALL = LoraSetup(rank=8, targets="all-linear")


def setup(**changes: object) -> TrainingSetup:
    base = TrainingSetup(
        model=TINY, method="lora", quant=None, stack="hf-trainer", seq_len=32, micro_batch=3,
        gradient_checkpointing=False, optimizer="adamw_torch",
        lora=LoraSetup(rank=8, targets="attention"),
    )  # fmt: skip
    return base.with_changes(**changes)


def gemm_flops(configuration: TrainingSetup, *phases: str, adapter: bool = False) -> float:
    return sum(
        op.flops * op.count
        for op in step_ops(configuration)
        if op.kind == "gemm" and op.phase in phases and (op.name == "adapter") == adapter
    )


def test_forward_is_two_flops_a_parameter_and_token():
    tokens = 96
    assert gemm_flops(setup(), "forward") == 2 * tokens * (2 * LAYER + HEAD)


def test_frozen_weights_need_no_gradient_of_their_own():
    assert gemm_flops(setup(), "backward") == gemm_flops(setup(), "forward")
    full = setup(method="full", lora=None)
    assert gemm_flops(full, "backward") == 2 * gemm_flops(full, "forward")


def test_checkpointing_runs_the_layers_again_but_not_the_head():
    again = gemm_flops(setup(gradient_checkpointing=True, lora=ALL), "recompute")
    assert again == 2 * 96 * 2 * LAYER
    assert gemm_flops(setup(), "recompute") == 0
    half = setup(gradient_checkpointing=True, checkpoint_every=2, lora=ALL)
    assert gemm_flops(half, "recompute") == again / 2


def test_recomputation_stops_before_a_last_product_without_adapter():
    again = gemm_flops(setup(gradient_checkpointing=True), "recompute")
    assert again == 2 * 96 * 2 * (LAYER - 8192)
    reentrant = setup(gradient_checkpointing=True, stack="transformers-4")
    assert gemm_flops(reentrant, "recompute") == 2 * 96 * 2 * LAYER


def test_tiled_head_computes_the_logits_twice():
    whole, tiled = setup(), setup(stack="trl")
    extra = gemm_flops(tiled, "backward") - gemm_flops(whole, "backward")
    assert extra == 2 * 96 * HEAD


def test_adapter_flops_and_parameters():
    # q and o: 64 + 64, k and v: 64 + 32 widths a layer; rank 8.
    widths = 2 * (128 + 128 + 96 + 96)
    assert trained(setup()) == (8 * widths, 16)
    dora = setup(lora=LoraSetup(rank=8, targets="attention", use_dora=True))
    magnitudes = 2 * (64 + 32 + 32 + 64)  # one an output: q, k, v and o of two layers
    assert trained(dora) == (8 * widths + magnitudes, 24)
    assert gemm_flops(setup(), "forward", adapter=True) == 2 * 96 * 8 * widths
    assert gemm_flops(setup(), "backward", adapter=True) == 2 * 2 * 96 * 8 * widths
    assert [row.name for row in adapted_rows(setup())] == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_flash_attention_is_quadratic_and_causal():
    forward = [op for op in step_ops(setup()) if op.kind == "attention" and op.phase == "forward"]
    # 2 matrix products x 2 FLOPs x half of 32 x 32 pairs x 3 sequences x 4 heads x 16 wide
    assert [(op.flops, op.count) for op in forward] == [(4 * 3 * 4 * 512 * 16, 2)]
    double = [op for op in step_ops(setup(seq_len=64)) if op.kind == "attention"]
    assert double[0].flops == 4 * forward[0].flops


def test_a_block_mask_computes_the_masked_half_too():
    """StableLM, which packs in rows: SDPA with a mask does the whole square, at a slower rate."""
    flat = setup(stack="loracle", packing=True)
    rows = flat.with_changes(model=replace(TINY, keeps_apart=("rows",)))
    unpacked = rows.with_changes(packing=False)
    attention = {
        name: [op for op in step_ops(one) if op.kind == "attention"]
        for name, one in (("flat", flat), ("rows", rows), ("unpacked", unpacked))
    }
    assert [op.flops for op in attention["rows"]] == [2 * op.flops for op in attention["flat"]]
    assert {op.name for op in attention["rows"]} == {"masked"}
    assert attention["unpacked"] == attention["flat"]


def test_eager_attention_streams_every_score():
    scores = [op for op in step_ops(setup(attention="eager")) if op.name == "scores"]
    assert {(op.phase, op.bytes) for op in scores} == {
        ("forward", 24 * 3 * 4 * 32 * 32),
        ("backward", 34 * 3 * 4 * 32 * 32),
    }


def test_each_use_of_a_packed_weight_unpacks_it():
    packed = setup(method="qlora", quant="nf4", gradient_checkpointing=True, lora=ALL)
    uses = [op for op in step_ops(packed) if op.kind == "dequant"]
    assert {op.phase for op in uses} == {"forward", "recompute", "backward"}
    assert sum(op.bytes * op.count for op in uses) == pytest.approx(3 * 2 * LAYER * 2.57)


def test_accumulation_repeats_everything_but_the_optimizer():
    one, four = setup(), setup(grad_accum=4)
    assert flops_per_token(one) == pytest.approx(flops_per_token(four))
    assert [op.count for op in step_ops(four) if op.kind == "optimizer"] == [1]


def test_six_flops_a_parameter_is_what_a_large_model_costs():
    """With checkpointing, short sequences and a small head the law tends to 6 P."""
    shape = shape_from_config(
        {
            "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
            "vocab_size": 256,
        }
    )  # fmt: skip
    lean = setup(
        model=shape, gradient_checkpointing=True, lora=LoraSetup(rank=1, targets="all-linear")
    )
    assert flops_per_token(lean) == pytest.approx(6 * shape.num_params, rel=0.02)


def test_routed_experts_cost_what_they_are_used():
    moe = shape_from_config(
        {
            "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 1000, "num_local_experts": 8, "num_experts_per_tok": 2,
        }
    )  # fmt: skip
    rows = [op for op in step_ops(setup(model=moe)) if op.name.startswith("experts.")]
    forward = sum(op.flops * op.count for op in rows if op.phase == "forward")
    assert forward == 2 * 96 * 2 * (2 * 3 * 64 * 128)  # two experts a token, two layers


@given(
    length=st.integers(16, 4096), batch=st.integers(1, 8), rank=st.integers(1, 64),
    checkpointing=st.booleans(), quant=st.sampled_from([None, "nf4", "nf4-double", "int8"]),
)  # fmt: skip
def test_more_tokens_never_mean_less_work(length, batch, rank, checkpointing, quant):
    small = setup(
        seq_len=length, micro_batch=batch, gradient_checkpointing=checkpointing, quant=quant,
        lora=LoraSetup(rank=rank),
    )  # fmt: skip
    large = small.with_changes(seq_len=length + 16)

    def totals(ops):
        return sum(op.flops * op.count for op in ops), sum(op.bytes * op.count for op in ops)

    for less, more in zip(totals(step_ops(small)), totals(step_ops(large)), strict=True):
        assert less <= more


def test_every_other_of_nine_layers_means_five():
    """transformers recomputes layers 0, 2, 4, 6 and 8 (every_n_layers, index % n == 0)."""
    odd = shape_from_config({**TINY.config, "num_hidden_layers": 9})
    one = setup(gradient_checkpointing=True, checkpoint_every=2, lora=ALL, model=odd)
    every = gemm_flops(one.with_changes(checkpoint_every=1), "recompute")
    assert gemm_flops(one, "recompute") == pytest.approx(every * 5 / 9)
    assert one.recomputed_layers == 5
    assert one.with_changes(checkpoint_every=1).recomputed_layers == 9
    assert one.with_changes(gradient_checkpointing=False).recomputed_layers == 0
