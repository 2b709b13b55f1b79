"""Traces on demand: from the cache folder where it holds one, else from a dry run started apart."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loracle.catalog.folders import cache_folder
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Trace
from loracle.dryrun.trace import software
from loracle.errors import EngineError, MissingExtra
from loracle.jobs.libraries import missing_library
from loracle.jobs.trace_file import read_trace, trace_key


def traced(
    setup: TrainingSetup, gpu: Gpu, progress: Callable[[float], None] | None = None
) -> Trace:
    """The trace of a setup for cards like this one.

    Raises MissingExtra E051 without the training libraries, EngineError E040 where the step cannot
    be run on fake tensors.
    """
    lacking = missing_library()
    if lacking is not None:
        raise MissingExtra("train", lacking)
    key = trace_key(setup, gpu.compute_capability, software())
    path = cache_folder() / "traces" / f"{key}.json.z"
    known = read_trace(path)
    if known is not None:
        return known
    request = {"setup": plain_setup(setup), "capability": gpu.compute_capability}
    _work(json.dumps(request), path, progress)
    made = read_trace(path)
    if made is None:
        raise EngineError("engine.worker", reason="no trace was written")
    return made


def plain_setup(setup: TrainingSetup) -> dict[str, Any]:
    """A setup as plain data."""
    return dict(_adapter().dump_python(setup, mode="json"))


def setup_of(plain: dict[str, Any]) -> TrainingSetup:
    """The setup of plain data."""
    return _adapter().validate_python(plain)


def _adapter():  # type: ignore[no-untyped-def]  # noqa: ANN202
    from pydantic import TypeAdapter

    return TypeAdapter(TrainingSetup)


def _work(request: str, path: Path, progress: Callable[[float], None] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        worker = subprocess.Popen(
            [sys.executable, "-m", "loracle.jobs.trace_worker", str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True,
        )  # fmt: skip
        try:
            last = _follow(worker, request, progress)
        except BaseException:
            worker.kill()
            worker.wait()
            raise
        code = worker.wait()
        complaints.seek(0)
        said = complaints.read()
    if code == 0:
        return
    if last.startswith("{"):
        told = json.loads(last)
        raise EngineError(told["message"], **told["values"])
    reason = said.strip().splitlines()[-1] if said.strip() else f"exit code {code}"
    raise EngineError("engine.worker", reason=reason)


def _follow(
    worker: "subprocess.Popen[str]", request: str, progress: Callable[[float], None] | None
) -> str:
    """Hand over the request, pass progress on, and return the last line said."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    last = ""
    with worker.stdin as pipe:
        pipe.write(request)
    for line in worker.stdout:
        last = line.strip()
        word, _, share = last.partition(" ")
        if word == "progress" and progress is not None:
            progress(float(share))
    return last
