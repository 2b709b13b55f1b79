"""The published speeds: every row mapped, and every row that is not judged says why."""

import json
from collections import Counter

import pytest

from loracle.catalog.public_runs import FOLDER, public_runs

RUNS = public_runs()
LINES = (FOLDER / "throughput.jsonl").read_text("utf-8").splitlines()
PRINTED = {index: json.loads(line)["params_b"] for index, line in enumerate(LINES)}


def row(index: int):
    return next(run for run in RUNS if run.index == index)


def test_every_lora_row_of_quality_a_and_b_is_there():
    assert len(RUNS) == 404
    assert Counter(run.quality for run in RUNS) == {"A": 364, "B": 40}


def test_what_is_left_out_says_why():
    reasons = Counter(run.left_out for run in RUNS if run.left_out)
    assert reasons.total() == 18
    assert all(len(reason) > 20 for reason in reasons)


@pytest.mark.parametrize("name", sorted({run.model for run in RUNS}))
def test_the_shape_is_that_of_the_printed_size(name):
    run = next(run for run in RUNS if run.model == name)
    assert run.setup.model.num_params == pytest.approx(PRINTED[run.index] * 1e9, rel=0.03)


def test_a_row_reads_as_its_source_says():
    """Qwen README: rank 64, 2,048 tokens, 8 accumulation steps in 5.2 s."""
    run = row(21)
    setup = run.setup
    assert (setup.seq_len, setup.micro_batch, setup.grad_accum) == (2048, 1, 8)
    assert setup.lora is not None
    assert setup.lora.rank == 64
    assert run.tokens_per_s == pytest.approx(8 * 2048 / 5.2, rel=1e-3)
    assert run.gpu.id == "a100-80gb-sxm"


def test_sharded_rows_on_an_old_board_know_its_link():
    run = row(76)
    assert (run.setup.num_gpus, run.setup.parallel) == (2, "fsdp")
    assert run.node is not None
    assert run.node.link_bytes_per_s == pytest.approx(3.5e9)
    assert row(83).setup.parallel == "ddp"


def test_words_of_a_row_change_the_setup():
    assert row(163).setup.kbit_upcast  # baseline-peft-bnb
    assert not row(172).setup.kbit_upcast  # accelerated-peft-bnb
    assert row(174).setup.stack == "fast-kernels"
    assert row(237).setup.stack == "fast-kernels-liger"
    assert not row(335).setup.gradient_checkpointing  # from the source's own recipe
