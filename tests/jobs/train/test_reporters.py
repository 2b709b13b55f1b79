"""Reporters by name: real TensorBoard files in the run folder, and nothing sent unless asked."""

import os

import pytest

from loracle.errors import InputError, MissingExtra, RunError
from loracle.jobs.train import reporters
from loracle.jobs.train.options import REPORTERS, Options
from loracle.jobs.train.process import train_run


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    """What a reporter is told by the environment ends with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_tensorboard_writes_losses_into_the_run_folder(make_run, losses, place, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(
        options=Options(reporters=("tensorboard",)), data={"eval": str(place / "eval.jsonl")},
        evaluation={"every_steps": 2},
    )  # fmt: skip
    assert train_run(run, resume=False).state == "finished"
    written = EventAccumulator(str(run.path / "reports" / "tensorboard"))
    written.Reload()
    told = {event.step: event.value for event in written.Scalars("train/loss")}
    assert told == pytest.approx(losses(run), rel=1e-6)
    assert [event.step for event in written.Scalars("eval/loss")] == [2, 4]
    assert not any(path.is_dir() for path in run.checkpoints.glob("runs"))


@pytest.mark.parametrize("name", REPORTERS)
def test_a_name_alone_sends_nothing(name, tmp_path):
    found = reporters.environment([name], tmp_path, {})
    assert any(value.startswith(str(tmp_path)) or f"///{tmp_path}" in value
               for value in found.values())  # fmt: skip
    assert found["DO_NOT_TRACK"] == "true"
    assert found.get("WANDB_MODE", "offline") == found.get("SWANLAB_MODE", "offline") == "offline"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("wandb", "WANDB_API_KEY", "x"), ("wandb", "WANDB_MODE", "online"),
     ("swanlab", "SWANLAB_API_KEY", "x"), ("swanlab", "SWANLAB_MODE", "online")],
)  # fmt: skip
def test_a_key_or_a_mode_in_the_environment_asks_for_an_upload(name, key, value, tmp_path):
    found = reporters.environment([name], tmp_path, {key: value})
    assert f"{name.upper()}_MODE" not in found


def test_what_the_user_set_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    reporters.place_reporters(("mlflow",), tmp_path)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"


def test_no_reporter_changes_nothing(tmp_path):
    before = dict(os.environ)
    reporters.place_reporters((), tmp_path)
    assert dict(os.environ) == before
    assert not (tmp_path / "reports").exists()


def test_names_are_checked_before_a_run_folder_is_made(monkeypatch, make_run):
    monkeypatch.setattr(reporters.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError):
        reporters.check_reporters(("tensorflow",))
    for name in REPORTERS:
        with pytest.raises(MissingExtra) as raised:
            reporters.check_reporters((name,))
        assert raised.value.values == {"extra": name, "package": name}


def test_each_reporter_has_its_extra():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert set(REPORTERS) <= project["project"]["optional-dependencies"].keys()


def test_a_reporter_that_fails_later_is_left_out_and_the_run_goes_on(make_run, monkeypatch):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    run = make_run(options=Options(reporters=("tensorboard",)))
    assert train_run(run, resume=False).state == "finished"
    (failed,) = run.events("reporter_failed")
    assert (failed["name"], failed["cause"]) == ("TensorBoard", "no space left on device")


def test_a_reporter_that_cannot_start_ends_the_run_before_its_first_step(make_run, monkeypatch):
    pytest.importorskip("tensorboard")
    run = make_run(options=Options(reporters=("tensorboard",)))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(run.recipe))
    with pytest.raises(RunError) as raised:
        train_run(run, resume=False)
    assert raised.value.code == "E075"
    assert not any(run.events("step"))


@pytest.mark.parametrize("name", ["swanlab", "tensorboard"])
def test_an_adapted_run_closes_its_reporters_before_it_starts_again(make_run, monkeypatch, name):
    module = pytest.importorskip(name)
    import torch
    from torch.utils.tensorboard import SummaryWriter

    closed = []
    close = SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda self: (closed.append(1), close(self))[1])
    run = make_run(
        training={"micro_batch": 2, "effective_batch": 2},
        options=Options(on_oom="adapt", reporters=(name,)),
    )
    embed = torch.nn.Embedding.forward

    def limited(self, ids):
        if run.status().get("step", 0) >= 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return embed(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", limited)
    assert train_run(run, resume=False).state == "adapted"
    assert not run.events_file.read_text().count("reporter_failed")
    if name == "swanlab":
        with pytest.raises(RuntimeError, match="No active Run"):
            module.get_run()
    else:
        assert closed


def test_a_reporter_that_cannot_close_is_said(monkeypatch):
    import sys
    from types import SimpleNamespace

    def refuse():
        raise OSError("no space left on device")

    said = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=refuse))
    reporters.close_reporters(("wandb", "tensorboard"), lambda *one: said.append(one))
    assert said == [("wandb", "no space left on device")]
