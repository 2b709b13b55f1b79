import importlib.util
import json
import threading
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "train"


def load_benchmark(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny():
    """The module that makes tiny models, tokenizers and rows."""
    return load_benchmark("tiny_model")


@pytest.fixture(scope="session")
def place(tiny, tmp_path_factory):
    """A folder with a tiny model, 40 training rows and 6 for evaluation."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make_model(folder / "model")
    tiny.write_rows(folder / "train.jsonl", tiny.make_rows(40))
    tiny.write_rows(folder / "eval.jsonl", tiny.make_rows(6, seed=1))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_run(place, tmp_path):
    """Make a run of the tiny model; keyword groups go over the recipe's."""
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.launch import create_run
    from loracle.jobs.train.options import Options

    def make(name="run", *, options=None, **groups):
        recipe = {
            "model": str(place / "model"),
            "method": "lora",
            "data": {"train": str(place / "train.jsonl")},
            "lora": {"rank": 4, "targets": "attention"},
            "training": {
                "seq_len": 96, "steps": 4, "effective_batch": 2, "micro_batch": 1,
                "gradient_checkpointing": False, "optimizer": "adamw_torch",
                "learning_rate": 5e-3,
            },
            "save": {"every_steps": 2, "keep": 2, "folder": str(tmp_path / "runs")},
        }  # fmt: skip
        for group, values in groups.items():
            recipe[group] = recipe.get(group, {}) | values if isinstance(values, dict) else values
        return create_run(Recipe.model_validate(recipe), options or Options(), name=name)

    return make


@pytest.fixture
def losses():
    def read(run):
        return {event["step"]: event["loss"] for event in run.events("step")}

    return read


@pytest.fixture
def rows_file(tmp_path):
    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def stop_at():
    """Ask a run to stop as soon as it has logged a step."""

    def ask(run, step):
        def watch():
            while not any(event["step"] >= step for event in run.events("step")):
                pass
            run.stop_request.touch()

        threading.Thread(target=watch, daemon=True).start()

    return ask
