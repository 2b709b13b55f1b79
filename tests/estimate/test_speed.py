"""The speed law: its order, its parts, and what it must never do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.domain.gpu import Node
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.speed import estimate_speed

LLAMA = find_model("meta-llama/Llama-3.1-8B", offline=True)
H200, A100, GEFORCE = (find_gpu(name) for name in ("h200-141gb-sxm", "a100-80gb-sxm", "rtx-4090"))
SETUP = TrainingSetup(model=LLAMA, micro_batch=4)


def seconds(setup: TrainingSetup, gpu=A100, node: Node | None = None) -> float:
    return estimate_speed(setup, gpu, node=node).step_seconds.likely


def test_terms_add_up_to_the_step():
    for setup in (SETUP, SETUP.with_changes(seq_len=256, micro_batch=1)):
        estimate = estimate_speed(setup, A100)
        assert sum(term.value for term in estimate.terms) == pytest.approx(
            estimate.step_seconds.likely
        )


def test_tokens_per_s_counts_every_card():
    setup = SETUP.with_changes(num_gpus=4, parallel="ddp", grad_accum=2)
    estimate = estimate_speed(setup, A100)
    tokens = 2048 * 4 * 2 * 4
    assert estimate.tokens_per_s.likely == pytest.approx(tokens / estimate.step_seconds.likely)
    assert estimate.tokens_per_s.low == pytest.approx(tokens / estimate.step_seconds.high)


def test_never_above_what_the_card_can_multiply():
    """6 FLOPs a parameter and token, at the best measured matrix rate: an upper bound."""
    best = A100.gemm_flops_per_s["bfloat16"] / (6 * LLAMA.num_params * 0.9)
    assert estimate_speed(SETUP, A100).tokens_per_s.likely < best


def test_small_batches_on_a_big_card_wait_for_the_cpu():
    small = estimate_speed(SETUP.with_changes(seq_len=256, micro_batch=1), H200)
    assert small.bound == "launch"
    assert estimate_speed(SETUP.with_changes(seq_len=4096), H200).bound != "launch"


def test_packed_weights_pay_for_unpacking():
    lora = SETUP.with_changes(method="lora", quant=None)
    assert seconds(SETUP) > seconds(lora)


def test_recomputation_costs_between_a_fifth_and_a_half():
    without = seconds(SETUP.with_changes(gradient_checkpointing=False))
    assert 1.2 < seconds(SETUP) / without < 1.5


def test_rank_is_nearly_free():
    narrow, wide = (
        seconds(SETUP.with_changes(lora=LoraSetup(rank=rank, targets="attention")))
        for rank in (2, 64)
    )
    assert 1.0 <= wide / narrow < 1.05


def test_fused_kernels_and_tiles_of_compilers_are_faster():
    assert seconds(SETUP.with_changes(stack="unsloth")) < seconds(SETUP)


def test_upcast_streams_twice_as_much():
    plain = SETUP.with_changes(stack="hf-trainer")
    assert seconds(plain.with_changes(kbit_upcast=True)) > 1.1 * seconds(plain)


def test_data_parallel_over_pcie_scales_sharding_does_not():
    """Published: LoRA keeps 92-97 % on PCIe, sharded 7B on two 3090s loses a third."""
    ddp = SETUP.with_changes(num_gpus=2, parallel="ddp", method="lora", quant=None)
    card = find_gpu("rtx-3090")
    alone = estimate_speed(ddp.with_changes(num_gpus=1, parallel="none"), card)
    both = estimate_speed(ddp, card)
    assert 0.92 < both.tokens_per_s.likely / alone.tokens_per_s.likely / 2 <= 1
    old_board = Node(gpu_id=card.id, num_gpus=2, link_bytes_per_s=3.5e9)
    sharded = estimate_speed(ddp.with_changes(parallel="fsdp"), card, node=old_board)
    assert sharded.tokens_per_s.likely < 0.8 * both.tokens_per_s.likely


def test_part_of_a_card_is_that_much_slower():
    whole = seconds(SETUP)
    part = seconds(SETUP, node=Node(gpu_id=A100.id, share="mig", share_fraction=3 / 7))
    assert whole < part == pytest.approx(whole * 7 / 3, rel=0.15)


def test_cards_without_bf16_are_priced_at_fp16():
    t4 = find_gpu("t4")
    assert seconds(SETUP, t4) < 10 * seconds(SETUP, find_gpu("a10"))


def test_an_unknown_stack_says_so():
    estimate = estimate_speed(SETUP.with_changes(stack="homemade"), A100)
    assert "speed.note.unknown_stack" in estimate.notes


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(64, 8192), batch=st.integers(1, 8), factor=st.floats(1.01, 4),
    field=st.sampled_from(["gemm_flops_per_s", "bandwidth_bytes_per_s"]),
    checkpointing=st.booleans(), stack=st.sampled_from(["loracle", "trl", "hf-trainer"]),
    attention=st.sampled_from(["sdpa", "eager"]),
)  # fmt: skip
def test_a_faster_card_is_never_slower_and_more_tokens_never_faster(
    length, batch, factor, field, checkpointing, stack, attention
):
    setup = SETUP.with_changes(
        seq_len=length, micro_batch=batch, gradient_checkpointing=checkpointing, stack=stack,
        attention=attention,
    )  # fmt: skip
    value = getattr(A100, field)
    better = (
        {k: v * factor for k, v in value.items()} if isinstance(value, dict) else (value * factor)
    )
    estimate = estimate_speed(setup, A100)
    faster = estimate_speed(setup, replace(A100, **{field: better}))
    rounding = 1 + 1e-9
    assert faster.step_seconds.likely <= estimate.step_seconds.likely * rounding
    longer = estimate_speed(setup.with_changes(seq_len=length + 64), A100)
    assert longer.step_seconds.likely * rounding >= estimate.step_seconds.likely
    order = estimate.step_seconds
    assert 0 < order.low <= order.likely <= order.high


@given(accum=st.integers(1, 16))
def test_accumulation_saves_only_the_optimizer(accum):
    one, many = seconds(SETUP), seconds(SETUP.with_changes(grad_accum=accum))
    assert many <= accum * one * 1.0001
    assert many >= accum * one * 0.9
