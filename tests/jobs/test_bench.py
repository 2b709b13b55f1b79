"""Real steps of a small model on the CPU: the loss is a real one, the record reads back."""

import math

import pytest

from loracle.catalog.measured import read_runs, setup_of, write_run
from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.jobs.bench import Bench, bench, measured_run

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 512,
}  # fmt: skip


def setup(**changes) -> TrainingSetup:
    base = TrainingSetup(
        model=shape_from_config(CONFIG, id="tiny"), method="lora", quant=None, seq_len=32,
        micro_batch=2, grad_accum=2, optimizer="adamw_torch", lora=LoraSetup(rank=4),
    )  # fmt: skip
    return base.with_changes(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "full", "lora": None},
        {"method": "qlora", "quant": "nf4-double"},
        {"gradient_checkpointing": False},
        {"stack": "hf-trainer", "autocast": None, "base_dtype": "float32"},
    ],
    ids=["lora", "full", "qlora", "no-checkpointing", "plain"],
)
def test_steps_are_real(changes):
    outcome = bench(setup(**changes), steps=3, device="cpu")
    assert len(outcome.step_seconds) == 3
    # random weights know nothing: the loss of a step is near ln(vocabulary)
    assert outcome.losses == pytest.approx([math.log(512)] * 3, rel=0.05)


def test_only_adapters_learn():
    import torch

    from loracle.jobs.bench import _prepared

    model, _ = _prepared(setup(), torch.device("cpu"))
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_figures_follow_from_the_steps():
    outcome = Bench(setup=setup(), step_seconds=(0.5, 0.4, 0.6), watts=200.0)
    assert outcome.seconds == 0.5
    assert outcome.tokens_per_s == 2 * 2 * 32 / 0.5  # 256
    assert outcome.spread == pytest.approx(0.4)
    assert outcome.tokens_per_joule == pytest.approx(256 / 200)
    assert outcome.price_per_million(2.56) == pytest.approx(2.56 / 3600 / 256 * 1e6)


def test_record_reads_back(tmp_path):
    outcome = bench(setup(), steps=1, device="cpu")
    path = tmp_path / "measured.jsonl"
    write_run(measured_run(outcome, "rtx-4090", run_id="bench-1"), path)
    (row,) = read_runs(path)
    assert row.tokens_per_s == outcome.tokens_per_s
    again = setup_of(row)
    assert (again.seq_len, again.micro_batch, again.grad_accum) == (32, 2, 2)
    assert again.lora is not None
    assert again.lora.rank == 4


def test_no_memory_is_an_answer(tmp_path):
    row = measured_run(Bench(setup=setup(), step_seconds=(), fits=False), "t4", run_id="b")
    write_run(row, tmp_path / "m.jsonl")
    assert read_runs(tmp_path / "m.jsonl")[0].fits is False
