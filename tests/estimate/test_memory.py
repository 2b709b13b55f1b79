"""Peak memory against measured runs, and laws that hold for every setup."""

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loracle.catalog.gpus import find_gpu
from loracle.catalog.layouts import LAWS
from loracle.catalog.measured import setup_of, shipped_runs
from loracle.catalog.shapes import architectures, known_architectures, shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.errors import UnsupportedModel
from loracle.estimate.decoder.architectures import LAYERS
from loracle.estimate.decoder.parts import evaluation_profiles, layer_profiles
from loracle.estimate.decoder.profile import total
from loracle.estimate.memory import estimate_memory

H200 = find_gpu("H200 SXM 141GB")
LLAMA = shape_from_config({"model_type": "llama"}, id="llama-2-7b")
SMALL = {"num_hidden_layers": 2, "n_layer": 2, "n_layers": 2}
BUILT = [run for run in shipped_runs() if run.peak_allocated_bytes]


def error_pct(predicted, measured):
    return 100 * (predicted / measured - 1)


@pytest.mark.parametrize("run", BUILT, ids=lambda run: run.id)
def test_a_measured_run_lies_in_the_range(run):
    estimate = estimate_memory(setup_of(run), H200)
    assert abs(error_pct(estimate.allocated_bytes.likely, run.peak_allocated_bytes)) < 1
    assert estimate.allocated_bytes.low <= run.peak_allocated_bytes <= estimate.allocated_bytes.high
    assert estimate.reserved_bytes.low <= run.peak_reserved_bytes <= estimate.reserved_bytes.high


def test_the_figures_of_the_measured_runs():
    estimates = [(run, estimate_memory(setup_of(run), H200)) for run in BUILT]
    allocated = [
        abs(error_pct(one.allocated_bytes.likely, run.peak_allocated_bytes))
        for run, one in estimates
    ]
    reserved = [
        abs(error_pct(one.reserved_bytes.likely, run.peak_reserved_bytes)) for run, one in estimates
    ]
    assert mean(allocated) <= 0.2
    assert max(allocated) <= 1
    assert mean(reserved) <= 2
    assert max(reserved) <= 8


def test_verdicts_under_a_cap():
    capped = [run for run in shipped_runs() if run.memory_cap_bytes]
    assert len(capped) == 6
    for run in capped:
        predicted = estimate_memory(setup_of(run), H200).reserved_bytes
        if predicted.high <= run.memory_cap_bytes:
            assert run.fits
        if predicted.low > run.memory_cap_bytes:
            assert not run.fits


def test_every_architecture_of_the_catalog_has_a_layer():
    without = {name for name in known_architectures() if name not in LAYERS}
    # GPT-J's attention is not modelled; Qwen3.5 has its own two layers.
    assert without == {"gptj", "qwen3_5_text"}
    assert set(LAWS) >= {str(row["law"]) for row in architectures().values()}


def shape_of(name):
    key = architectures()[name]["keys"].get("num_hidden_layers", "num_hidden_layers")
    config = {"model_type": name, key: 2}
    if name == "gemma4_text":
        config["hidden_size_per_layer_input"] = 0
    return shape_from_config(config, id=name)


RUNNABLE = [name for name in known_architectures() if name != "gptj"]


@pytest.mark.parametrize("name", RUNNABLE)
def test_laws_of_every_architecture(name):
    shape = shape_of(name)
    plain = TrainingSetup(model=shape, micro_batch=2, seq_len=1024)
    if name in ("deepseek_v2", "deepseek_v3"):
        plain = plain.with_changes(lora=LoraSetup(targets="attention"))
    with_checkpoints = estimate_memory(plain)
    without = estimate_memory(plain.with_changes(gradient_checkpointing=False))
    eager = estimate_memory(plain.with_changes(attention="eager", gradient_checkpointing=False))
    longer = estimate_memory(plain.with_changes(seq_len=2048))
    full = estimate_memory(plain.with_changes(method="full", quant=None, lora=None))
    assert with_checkpoints.allocated_bytes.likely <= without.allocated_bytes.likely
    if name != "falcon":  # its single key head leaves SDPA no fused kernel, over the whole batch
        assert without.allocated_bytes.likely <= eager.allocated_bytes.likely * 1.0001
    assert with_checkpoints.allocated_bytes.likely < longer.allocated_bytes.likely
    assert full.model_bytes == pytest.approx(2 * shape.num_params, rel=0.03)
    for one in (with_checkpoints, without, eager, longer, full):
        assert sum(term.value for term in one.terms) == pytest.approx(one.allocated_bytes.likely)
        assert one.allocated_bytes.likely <= one.reserved_bytes.likely < one.device_bytes.likely
        assert all(term.value > 0 and term.formula for term in one.terms)


def test_a_model_without_a_layer_is_refused():
    gptj = shape_from_config({"model_type": "gptj"}, id="gpt-j")
    with pytest.raises(UnsupportedModel) as caught:
        estimate_memory(TrainingSetup(model=gptj))
    assert caught.value.code == "E033"


def test_adapters_on_routed_experts_are_refused():
    deepseek = shape_of("deepseek_v2")
    with pytest.raises(UnsupportedModel) as caught:
        estimate_memory(TrainingSetup(model=deepseek, lora=LoraSetup(targets="all-linear")))
    assert caught.value.hints == ("hint.shape.expert_adapters",)
    full = TrainingSetup(model=deepseek, method="full", quant=None)
    assert estimate_memory(full).allocated_bytes.likely > 0


setups = st.builds(
    TrainingSetup,
    model=st.sampled_from([LLAMA, *(shape_of(n) for n in ("qwen3", "gemma2", "phi3", "falcon"))]),
    method=st.just("qlora"),
    stack=st.sampled_from(["loracle", "trl", "hf-trainer"]),
    kbit_upcast=st.booleans(),
    seq_len=st.integers(64, 8192),
    micro_batch=st.integers(1, 8),
    grad_accum=st.integers(1, 4),
    gradient_checkpointing=st.booleans(),
    attention=st.sampled_from(["sdpa", "eager", "flash_attention_2"]),
    optimizer=st.sampled_from(["adamw_torch", "adamw_8bit", "paged_adamw_8bit", "sgd"]),
    packing=st.booleans(),
    lora=st.builds(
        LoraSetup,
        rank=st.sampled_from([8, 64]),
        targets=st.sampled_from(["attention", "all-linear"]),
        dropout=st.sampled_from([0.0, 0.1]),
        dtype=st.sampled_from(["bfloat16", "float32"]),
    ),
)


@settings(max_examples=60, deadline=None)
@given(setup=setups, more=st.integers(1, 4096))
def test_more_tokens_never_need_less(setup, more):
    here = estimate_memory(setup)
    longer = estimate_memory(setup.with_changes(seq_len=setup.seq_len + more))
    wider = estimate_memory(setup.with_changes(micro_batch=setup.micro_batch + 1))
    for one in (longer, wider):
        assert one.allocated_bytes.likely >= here.allocated_bytes.likely
        assert one.reserved_bytes.likely >= here.reserved_bytes.likely
    for bounds in (here.allocated_bytes, here.reserved_bytes, here.device_bytes):
        assert 0 < bounds.low <= bounds.likely <= bounds.high
    assert sum(term.value for term in here.terms) == pytest.approx(here.allocated_bytes.likely)


@settings(max_examples=40, deadline=None)
@given(setup=setups)
def test_what_is_added_is_never_free(setup):
    here = estimate_memory(setup).allocated_bytes.likely
    more = [
        setup.with_changes(lora=LoraSetup(rank=256, targets=setup.lora.targets,
                                          dropout=setup.lora.dropout, dtype=setup.lora.dtype)),
        setup.with_changes(quant="nf4"),  # single instead of double quantisation
        setup.with_changes(eval_micro_batch=16),
        setup.with_changes(grad_accum=setup.grad_accum + 1),
        setup.with_changes(num_gpus=2, parallel="ddp"),
    ]  # fmt: skip
    for one in more:
        assert estimate_memory(one).allocated_bytes.likely >= here * 0.9999


def test_sharding_divides_the_weights():
    alone = TrainingSetup(model=LLAMA, quant=None, method="lora")
    sharded = alone.with_changes(num_gpus=4, parallel="fsdp")
    assert estimate_memory(sharded).model_bytes == pytest.approx(
        estimate_memory(alone).model_bytes / 4, rel=0.01
    )
    assert estimate_memory(sharded).allocated_bytes.likely < (
        estimate_memory(alone).allocated_bytes.likely
    )


def test_a_checkpoint_every_other_layer_lies_between():
    every = TrainingSetup(model=LLAMA, micro_batch=4)
    none = every.with_changes(gradient_checkpointing=False)
    second = every.with_changes(checkpoint_every=2)
    bytes_of = [estimate_memory(one).allocated_bytes.likely for one in (every, second, none)]
    assert bytes_of == sorted(bytes_of)
    assert bytes_of[0] < bytes_of[1] < bytes_of[2]


def test_of_every_second_layer_the_first_is_recomputed():
    setup = TrainingSetup(model=LLAMA, checkpoint_every=2)
    profiles, order = layer_profiles(setup, (9, 0))
    kept = [profiles[kind].kept[1] for kind in order]
    assert kept[0::2] == [2 * LLAMA.hidden_size] * 16  # the 16-bit input
    assert min(kept[1::2]) > 20 * LLAMA.hidden_size


def test_what_a_phi3_layer_keeps_of_a_token():
    shape = shape_from_config(
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
         "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 32}, id="phi3",
    )  # fmt: skip
    setup = TrainingSetup(
        model=shape, stack="trl", gradient_checkpointing=False, kbit_upcast=False,
        lora=LoraSetup(rank=16, targets="qkv_proj,o_proj", dropout=0.0, dtype="bfloat16"),
    )  # fmt: skip
    profiles, order = layer_profiles(setup, (9, 0))
    h, i, rank, heads = 3072, 8192, 16, 32
    norms = 2 * (4 * h + 4)  # inputs in fp32, one root a token; nothing saves the second's output
    projected = 2 * h + 2 * rank + 2 * 3 * h  # the adapter's input and middle, the sum
    attention = 2 * 2 * h + 2 * h + 4 * heads  # joined query and key, output, log-sum-exp
    output = 2 * h + 2 * rank  # the output laid token by token, for the adapter
    mlp = 2 * 2 * i + 2 * i  # gate and up in one, silu(gate)
    assert profiles[order[-1]].kept[1] == norms + projected + attention + output + mlp


def test_the_first_norm_saves_nothing_where_nothing_before_it_is_trained():
    setup = TrainingSetup(model=LLAMA, stack="trl", gradient_checkpointing=False, kbit_upcast=False)
    profiles, order = layer_profiles(setup, (9, 0))
    kept = [profiles[kind].kept[1] for kind in order]
    assert kept[1:] == [kept[1]] * 31
    assert kept[1] - kept[0] == 4 * LLAMA.hidden_size + 4  # its input in fp32, its root
    asked = setup.with_changes(stack="hf-trainer")  # enable_input_require_grads
    profiles, order = layer_profiles(asked, (9, 0))
    assert len({profiles[kind].kept for kind in order}) == 1


def test_an_evaluation_keeps_nothing_and_ends_in_two_copies_of_the_logits():
    setup = TrainingSetup(
        model=LLAMA, stack="hf-trainer", kbit_upcast=True, eval_micro_batch=8, seq_len=2048
    )
    profiles, order, head = evaluation_profiles(setup, (9, 0))
    assert [profiles[kind].kept for kind in order] == [(0, 0, 0)] * 32
    h, words = LLAMA.hidden_size, LLAMA.vocab_size
    # The last norm in fp32, 16-bit logits, an fp32 copy, log-probabilities. The head's own 16-bit
    # copy is made for the product and gone after it: a frozen weight is not in autocast's cache.
    assert max(total(point)[1] for point in head.forward) == 4 * h + 2 * words + 4 * words * 2
    with_eval = estimate_memory(setup)
    assert with_eval.peak_phase == "evaluation"
    terms = {term.id: term.value for term in with_eval.terms}
    assert terms["memory.logits"] == 8 * 2048 * (4 * h + 10 * words)


def test_a_larger_evaluation_gets_segments_of_its_own():
    llama3 = shape_from_config(
        {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
         "intermediate_size": 14336}, id="llama-3",
    )  # fmt: skip
    plain = TrainingSetup(model=llama3, stack="hf-trainer", micro_batch=2, seq_len=2048)
    alone = estimate_memory(plain, H200).reserved_bytes.likely
    same = estimate_memory(plain.with_changes(eval_micro_batch=2), H200).reserved_bytes.likely
    twice = estimate_memory(plain.with_changes(eval_micro_batch=4), H200).reserved_bytes.likely
    assert same == pytest.approx(alone)
    # The 16-bit logits of four rows fit where the fp32 logits of two were; their two fp32 copies
    # fit nowhere.
    assert twice - alone == pytest.approx(2 * (4 * 4 * 2048 * 128256))


def test_a_fused_head_saves_the_logits():
    # 8 x 2048 tokens of a 128k vocabulary: two fp32 copies and the log-probabilities
    llama3 = shape_from_config(
        {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
         "intermediate_size": 14336}, id="llama-3",
    )  # fmt: skip
    plain = TrainingSetup(model=llama3, stack="hf-trainer", micro_batch=8)
    fused = plain.with_changes(stack="trl")
    saved = estimate_memory(plain).allocated_bytes.likely - (
        estimate_memory(fused).allocated_bytes.likely
    )
    logits = 4 * 8 * 2048 * 128256
    assert 2 * logits < saved < 3.5 * logits


def test_the_card_decides_kernel_workspace_and_context():
    setup = TrainingSetup(model=LLAMA, lora=LoraSetup(targets="attention"))  # nothing is paged
    hopper = estimate_memory(setup, H200)
    ampere = estimate_memory(setup, find_gpu("RTX 3090"))
    by_id = {term.id: term.value for term in hopper.terms}
    assert by_id["memory.workspace"] == 2 * (32 << 20)
    assert {term.id: term.value for term in ampere.terms}["memory.workspace"] == 2 * 8320 * 1024
    outside = hopper.device_bytes.likely - hopper.reserved_bytes.likely
    assert outside == pytest.approx(H200.context_bytes)
