"""A run folder: everything about one training run, in files that outlive its process.

    runs/NAME/
      recipe.yaml       the resolved recipe, every default written out
      plan.json         the plan that the run is held against (absent without one)
      run.json          what the run stands on: model, data and prompt hashes, versions, setup
      status.json       where it is now: state, process, step, and why it ended
      events.jsonl      what happened, one JSON object a line, only ever appended to
      train.log         what the detached process wrote
      checkpoints/      step-000200/ with manifest.json; folders whose names start with a dot
                        are being written and do not count
      adapter/          the result: PEFT's files (model/ instead after full fine-tuning)
      record.json       the run as a measured run, for `loracle validate`

Readers (`attach`, `runs`, `evaluate`, `merge`, a web page) need no lock: each file is replaced
whole or appended to by lines.
"""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loracle.errors import InputError, RunError
from loracle.jobs.writing import writing

SCHEMA = "loracle.run/1"
ENDED = ("finished", "stopped", "failed")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths and readers of one run. Making the object touches no file."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's own name, which commands accept."""
        return self.path.name

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def plan(self) -> Path:
        """The plan that the run is held against."""
        return self.path / "plan.json"

    @property
    def facts(self) -> Path:
        """`run.json`."""
        return self.path / "run.json"

    @property
    def status_file(self) -> Path:
        """`status.json`."""
        return self.path / "status.json"

    @property
    def events_file(self) -> Path:
        """`events.jsonl`."""
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        """Output of the detached process."""
        return self.path / "train.log"

    @property
    def checkpoints(self) -> Path:
        """The folder that holds the checkpoints."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The trained adapter."""
        return self.path / "adapter"

    @property
    def model(self) -> Path:
        """The trained model, after full fine-tuning."""
        return self.path / "model"

    @property
    def record(self) -> Path:
        """The run as a measured run."""
        return self.path / "record.json"

    @property
    def stop_request(self) -> Path:
        """A file whose presence asks the run to save and stop."""
        return self.path / "stop"

    def read_facts(self) -> dict[str, object]:
        """`run.json`; raises RunError E061 where it is missing or broken."""
        return read_json(self.facts)

    def status(self) -> dict[str, object]:
        """`status.json`, or state `new` before the run first wrote one."""
        if not self.status_file.is_file():
            return {"state": "new", "step": 0}
        return read_json(self.status_file)

    def state(self) -> str:
        """new, starting, running, finished, stopped, failed; `lost` when its process is gone."""
        status = self.status()
        state = str(status["state"])
        if state in ("starting", "running") and not is_alive(status):
            return "lost"
        return state

    def events(self, kind: str | None = None, *, after: int = 0) -> Iterator[dict[str, object]]:
        """Events in order, from byte `after` on; a last line still being written is left out."""
        if not self.events_file.is_file():
            return
        with self.events_file.open("rb") as file:
            file.seek(after)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                with contextlib.suppress(json.JSONDecodeError):  # a line torn by a crash
                    event = json.loads(line)
                    if kind is None or event.get("event") == kind:
                        yield event


def new_run(parent: Path, name: str | None, model: str, method: str) -> RunFolder:
    """Make an empty run folder; without a name, one from model, method and day.

    Raises InputError E013 for a bad name, RunError E062 where that run exists already,
    MachineError E053 or E054 where `parent` cannot be written.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise InputError("error.train.run_name", code="E013", name=name)
    run = RunFolder(parent / (name or _fresh_name(parent, model, method)))
    with writing(run.path):
        try:
            run.path.mkdir(parents=True)
        except FileExistsError as error:
            raise RunError(
                "error.train.run_exists",
                code="E062",
                hints=("hint.train.resume", "hint.train.other_name"),
                name=run.name,
                path=str(run.path),
            ) from error
        run.checkpoints.mkdir()
    return run


def open_run(text: str, parent: Path = Path("runs")) -> RunFolder:
    """The run that a path, a name under `parent` or the end of a name stands for.

    Raises InputError E013 where none or several match.
    """
    for path in (Path(text), parent / text):
        if RunFolder(path).facts.is_file() or RunFolder(path).status_file.is_file():
            return RunFolder(path)
    matches = [run for run in list_runs(parent) if run.name.endswith(text)]
    if len(matches) == 1:
        return matches[0]
    raise InputError(
        "error.train.no_run" if not matches else "error.train.many_runs",
        code="E013",
        hint="hint.train.list_runs",
        name=text,
        known=", ".join(run.name for run in (matches or list_runs(parent))[-5:]) or "-",
    )


def list_runs(parent: Path = Path("runs")) -> list[RunFolder]:
    """Every run folder, oldest first."""
    found = [RunFolder(path) for path in parent.glob("*") if (path / "status.json").is_file()]
    return sorted(found, key=lambda run: (run.path.stat().st_ctime, run.name))


def is_alive(status: Mapping[str, object]) -> bool:
    """Whether the process that wrote this status still runs on this machine.

    The start time (in clock ticks since boot) tells it from a later process with the same number.
    """
    pid, host = status.get("pid"), status.get("host")
    if not isinstance(pid, int) or host != os.uname().nodename:
        return False
    started = status.get("process_start")
    return process_start(pid) == started if started is not None else _exists(pid)


def process_start(pid: int) -> int | None:
    """Clock ticks since boot at which a process began; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def write_status(run: RunFolder, *, flush: bool = True, **values: object) -> None:
    """Replace `status.json` by its old values with these on top, stamped with the time.

    Without `flush` a power cut may undo it: good enough for the step that a run is at.
    """
    status = run.status() | values | {"updated": now()}
    write_json(run.status_file, status, flush=flush)


def append_event(run: RunFolder, event: str, **values: object) -> dict[str, object]:
    """Append one event in a single write, so that a kill tears at most the last line."""
    document = {"time": now(), "event": event, **values}
    line = (json.dumps(document, ensure_ascii=False, default=str) + "\n").encode()
    with run.events_file.open("ab") as file:
        if file.tell() and not _ends_line(run.events_file):
            line = b"\n" + line  # what a kill tore stays a line of its own
        file.write(line)
    return document


def now() -> str:
    """The time in UTC, to the millisecond, as events carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file; raises RunError E061."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            "error.train.broken_file", code="E061", path=str(path), cause=str(error)
        ) from error
    if not isinstance(document, dict):
        raise RunError("error.train.broken_file", code="E061", path=str(path), cause="no object")
    return document


def write_json(path: Path, document: Mapping[str, object], *, flush: bool = True) -> None:
    """Replace a file by a JSON document, whole or not at all."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=str) + "\n"
    write_whole(path, text.encode(), flush=flush)


def write_whole(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write beside, flush to the disk, rename: a reader or a crash sees the old or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fresh_name(parent: Path, model: str, method: str) -> str:
    """`qwen3-8b-qlora-1130a3`: model, method, month and day, and two random characters."""
    base = re.sub(r"[^a-z0-9.]+", "-", Path(model).name.lower()).strip("-.") or "model"
    stamp = datetime.now(UTC).strftime("%m%d")
    name = f"{base[:40]}-{method}-{stamp}{secrets.token_hex(1)}"
    return name if not (parent / name).exists() else f"{name}{secrets.token_hex(2)}"
