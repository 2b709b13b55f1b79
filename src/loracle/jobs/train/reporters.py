"""Reporters by name: what they write lies in the run folder, and leaves the machine only if asked.

A name on the command line asks for a reporter, not for an upload. W&B and SwanLab go on line where
the environment holds their key or mode, MLflow and Trackio where it names a server; otherwise each
writes beside the run, and its own command can upload that later. None of them tells its makers
anything. One that cannot start ends the run before its first step; one that fails later is left
out, since no curve is worth a training run.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loracle.errors import InputError, MissingExtra, RunError
from loracle.jobs.train.options import REPORTERS

_ASKED = {  # a variable that the user set to send results somewhere, per reporter
    "wandb": ("WANDB_API_KEY", "WANDB_MODE"),
    "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE"),
    "mlflow": ("MLFLOW_TRACKING_URI",),
}
_FINISH = {"wandb": "finish", "swanlab": "finish", "trackio": "finish", "mlflow": "end_run"}
_QUIET = {
    "DO_NOT_TRACK": "true",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}


def check_reporters(names: Sequence[str]) -> None:
    """Raises InputError E013 for an unknown name, MissingExtra for one that is not installed."""
    for name in names:
        if name not in REPORTERS:
            raise InputError(
                "error.train.reporter", code="E013", name=name, known=", ".join(REPORTERS)
            )
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(name, name)


def place_reporters(names: Sequence[str], run: Path) -> None:
    """Tell the reporters by their environment where to write; what the user set there stands.

    Call it before a reporter is imported: some read their environment once, at that moment.
    """
    if not names:
        return
    (run / "reports").mkdir(exist_ok=True)
    for key, value in environment(names, run, os.environ).items():
        os.environ.setdefault(key, value)


def start_reporters(names: Sequence[str], run_name: str) -> None:
    """Start what transformers does not: it asks SwanLab for a run first, which raises there."""
    if "swanlab" in names:
        import swanlab

        swanlab.init(project=os.environ["SWANLAB_PROJ_NAME"], experiment_name=run_name)


def close_reporters(names: Sequence[str], on_failed: Callable[[str, str], None]) -> None:
    """Let each write what it holds and close its file: a process that is replaced has no exit.

    Call it after the callbacks' `on_train_end`, which is all that TensorBoard needs. `on_failed`
    gets the name and the cause of one that cannot close.
    """
    for name in names:
        module = sys.modules.get(name)  # imported by its callback, or never started
        finish = getattr(module, _FINISH.get(name, ""), None)
        if finish is None:
            continue
        try:
            finish()
        except Exception as error:  # noqa: BLE001 - five libraries, each with errors of its own
            on_failed(name, (str(error).strip() or type(error).__name__).splitlines()[0])


def guard(callback: Any, on_failed: Callable[[str, str], None]) -> None:
    """Let a reporter's callback fail without the run: `on_failed` gets its name and the cause.

    Raises RunError E075 where it fails when training begins.
    """
    name, failed = type(callback).__name__.removesuffix("Callback"), []

    def guarded(event: str) -> Callable[..., None]:
        inner = getattr(callback, event)

        def call(*args: Any, **kwargs: Any) -> None:
            if failed:
                return
            try:
                inner(*args, **kwargs)
            except Exception as error:
                failed.append(error)
                cause = (str(error).strip() or type(error).__name__).splitlines()[0]
                if event == "on_train_begin":
                    raise RunError(
                        "error.train.reporter_failed", code="E075",
                        hint="hint.train.reporter_failed", name=name, cause=cause,
                    ) from error  # fmt: skip
                on_failed(name, cause)

        return call

    for event in ("on_train_begin", "on_log", "on_save", "on_predict", "on_train_end"):
        setattr(callback, event, guarded(event))


def environment(names: Sequence[str], run: Path, user: Mapping[str, str]) -> dict[str, str]:
    """The variables for the named reporters; `user` is the environment as it was found."""
    folder = run / "reports"
    places = {
        "tensorboard": {"TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard")},
        "trackio": {"TRACKIO_DIR": str(folder / "trackio")},
        "swanlab": {"SWANLAB_LOGDIR": str(folder / "swanlab"), "SWANLAB_MODE": "offline",
                    "SWANLAB_PROJ_NAME": "loracle"},
        "wandb": {"WANDB_DIR": str(folder / "wandb"), "WANDB_MODE": "offline",
                  "WANDB_PROJECT": "loracle", "WANDB_SILENT": "true"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
                   "MLFLOW_EXPERIMENT_NAME": "loracle"},
    }  # fmt: skip
    found = dict(_QUIET)
    for one in names:
        asked = any(key in user for key in _ASKED.get(one, ()))
        found |= {key: value for key, value in places[one].items() if not (asked and _local(key))}
    return found


def _local(key: str) -> bool:
    """Whether a variable keeps a reporter on this machine, rather than naming a place on it."""
    return key in ("SWANLAB_MODE", "WANDB_MODE")
