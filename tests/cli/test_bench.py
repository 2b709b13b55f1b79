"""`loracle bench` from the outside, with the card and its steps stood in for."""

import json

import pytest
from typer.testing import CliRunner

from loracle.catalog.gpus import find_gpu
from loracle.catalog.measured import read_runs
from loracle.cli.app import app
from loracle.errors import NoCard
from loracle.jobs import bench as bench_module
from loracle.jobs import bench_card
from loracle.jobs.bench import Bench

runner = CliRunner()


@pytest.fixture
def card(monkeypatch):
    def steps(setup, **_):
        return Bench(
            setup=setup, step_seconds=(2.0, 2.1, 1.9), model_bytes=6 * 2**30,
            peak_allocated_bytes=9 * 2**30, peak_reserved_bytes=10 * 2**30, watts=400.0,
            celsius=66.0,
        )  # fmt: skip

    monkeypatch.setattr(bench_module, "bench", steps)
    monkeypatch.setattr(bench_card, "card_here", lambda: find_gpu("rtx-4090"))
    monkeypatch.setattr(bench_card, "sampler", lambda: None)


def run(*flags):
    return runner.invoke(app, ["bench", *flags], env={"LORACLE_LANG": "en", "COLUMNS": "100"})


def test_no_card_is_exit_3():
    error = run("Qwen/Qwen3-0.6B").exception
    assert isinstance(error, NoCard)
    assert error.exit_code == 3


def test_the_run_is_held_against_the_plan_and_kept(card, tmp_path):
    out = tmp_path / "deep" / "measured.jsonl"
    found = run("Qwen/Qwen3-8B", "--out", str(out), "--price", "2CNY/h")
    assert found.exit_code == 0
    for wanted in ("MEASURED", "PLAN", "DIFFERENCE", "10.0 GiB", "400 W", "66 °C"):
        assert wanted in found.stdout
    (row,) = read_runs(out)
    tokens = row.seq_len * row.micro_batch * row.grad_accum
    assert row.tokens_per_s == tokens / 2.0
    assert row.gpu == "rtx-4090"
    # 2 CNY an hour over so many tokens an hour, for a million of them
    cost = 2 / (row.tokens_per_s * 3600) * 1e6
    assert f"¥{cost:.2f}" in found.stdout


def test_json_is_the_record_with_the_plan_beside_it(card, tmp_path):
    found = run("Qwen/Qwen3-8B", "--out", str(tmp_path / "m.jsonl"), "--json")
    document = json.loads(found.stdout)
    assert document["schema"] == "loracle.measured-run/1"
    assert document["measured"]["peak_reserved_bytes"] == 10 * 2**30
    assert document["against_plan"]["planned_tokens_per_s"] > 0


def test_runs_add_up_in_one_file(card, tmp_path):
    out = tmp_path / "m.jsonl"
    for _ in range(2):
        run("Qwen/Qwen3-8B", "--out", str(out), "-q")
    assert len(read_runs(out)) == 2


def test_out_of_memory_is_told_and_kept(card, monkeypatch, tmp_path):
    monkeypatch.setattr(
        bench_module, "bench", lambda setup, **_: Bench(setup=setup, step_seconds=(), fits=False)
    )
    out = tmp_path / "m.jsonl"
    found = run("Qwen/Qwen3-8B", "--out", str(out))
    assert found.exit_code == 1
    assert "Out of memory" in found.stdout
    assert read_runs(out)[0].fits is False


def test_an_unwritable_place_is_told_first(card):
    from loracle.errors import InputError

    assert isinstance(run("Qwen/Qwen3-8B", "--out", "/proc/no/m.jsonl").exception, InputError)
