"""Copies of a run on any fsspec URL, made beside the training: a failing copy stops nothing.

A remote checkpoint's manifest goes last, so one without a manifest is not whole. Credentials come
from the environment, as each file system's own library reads them.
"""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loracle.errors import InputError, MissingExtra, RunError
from loracle.jobs.runs import RunFolder
from loracle.jobs.train.checkpoints import MANIFEST

ATTEMPTS = 4
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "oss", "obs", "cos", "tos", "abfs", "abfss", "az"}
_RESULTS = ("recipe.yaml", "plan.json", "run.json", "record.json", "status.json", "events.jsonl")


class Mirror:
    """A thread that copies what it is given, in order; `failed` names what did not arrive."""

    def __init__(self, url: str, run: RunFolder, report: Callable[..., None]) -> None:
        self.failed: list[str] = []
        self._files, root = open_url(url)
        self._root = f"{root}/{run.name}"
        self._run, self._report = run, report
        self._jobs: queue.Queue[Callable[[], str] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._loop, name="mirror", daemon=True)
        self._thread.start()

    def copy_checkpoint(self, folder: Path, gone: list[int]) -> None:
        """Queue a finished checkpoint, then the removal of those that went here too."""
        self._jobs.put(lambda: self._put_checkpoint(folder, gone))

    def copy_results(self) -> None:
        """Queue the adapter or model and the run's own files."""
        self._jobs.put(self._put_results)

    def finish(self) -> None:
        """Wait until everything queued has arrived or failed."""
        self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._attempt(job)

    def _attempt(self, job: Callable[[], str]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            began = time.monotonic()
            try:
                name = job()
            except Exception as error:  # noqa: BLE001 - each file system raises its own kinds
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                self._report("mirror_failed", attempt=attempt, cause=cause)
                if attempt == ATTEMPTS:
                    self.failed.append(cause)
                else:
                    time.sleep(2**attempt)
            else:
                seconds = round(time.monotonic() - began, 2)
                self._report("mirrored", name=name, seconds=seconds)
                return

    def _put_checkpoint(self, folder: Path, gone: list[int]) -> str:
        remote = f"{self._root}/checkpoints/{folder.name}"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        try:
            for path in sorted(files, key=lambda one: one.name == MANIFEST):
                self._put(path, f"{remote}/{path.relative_to(folder).as_posix()}")
        except FileNotFoundError:
            if folder.is_dir():
                raise
            # A newer checkpoint took its place meanwhile; that one removes what arrived.
        for step in gone:
            old = f"{self._root}/checkpoints/step-{step:06d}"
            if self._files.exists(old):
                self._files.rm(old, recursive=True)
        for name in _RESULTS:
            path = self._run.path / name
            if path.is_file():
                self._put(path, f"{self._root}/{name}")
        return folder.name

    def _put_results(self) -> str:
        for folder in (self._run.adapter, self._run.model):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    part = path.relative_to(self._run.path).as_posix()
                    self._put(path, f"{self._root}/{part}")
        for name in _RESULTS:
            path = self._run.path / name
            if path.is_file():
                self._put(path, f"{self._root}/{name}")
        return "results"

    def _put(self, path: Path, remote: str) -> None:
        if not _is_object_store(self._files):
            self._files.makedirs(remote.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(path), remote)
        size = self._files.info(remote)["size"]
        if size != path.stat().st_size and path.suffix not in (".jsonl", ".json"):
            raise RunError("error.train.mirror_size", code="E080", path=remote)


def open_url(url: str) -> tuple[Any, str]:
    """(file system, root path) of an fsspec URL, proved by writing and removing a small object.

    Raises MissingExtra for a protocol whose package is not installed, InputError E013 where the
    place cannot be written.
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        files, root = fsspec.core.url_to_fs(url.rstrip("/"))
    except ImportError as error:
        raise MissingExtra(protocol, f"fsspec[{protocol}]") from error
    except ValueError as error:
        raise InputError(
            "error.train.mirror", code="E013", hint="hint.train.mirror", url=url, cause=str(error)
        ) from error
    probe = f"{root}/.loracle-probe"
    try:
        if not _is_object_store(files):  # there it would create a bucket out of a typing error
            files.makedirs(root, exist_ok=True)
        files.pipe_file(probe, b"x")
        files.rm_file(probe)
    except Exception as error:
        raise InputError(
            "error.train.mirror", code="E013", hint="hint.train.mirror", url=url,
            cause=f"{type(error).__name__}: {error}".splitlines()[0],
        ) from error  # fmt: skip
    return files, root


def _is_object_store(files: Any) -> bool:
    """Whether folders exist only as parts of names."""
    names = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return bool(_OBJECT_STORES.intersection(names))


def fetch_run(url: str, parent: Path) -> RunFolder:
    """Bring a mirrored run (`s3://bucket/runs/NAME`) back into `parent`, to resume it there.

    Checkpoints without a manifest are left behind. Raises RunError E062 where the folder exists.
    """
    import fsspec

    files, root = fsspec.core.url_to_fs(url.rstrip("/"))
    run = RunFolder(parent / root.rpartition("/")[2])
    if run.path.exists():
        raise RunError(
            "error.train.run_exists", code="E062", hint="hint.train.resume", name=run.name,
            path=str(run.path),
        )  # fmt: skip
    paths = [path for path in files.find(root) if "/.loracle-probe" not in path]
    whole = {path.rpartition("/")[0] for path in paths if path.endswith(f"/{MANIFEST}")}
    for path in paths:
        part = path[len(root) :].lstrip("/")
        if part.startswith("checkpoints/") and not any(path.startswith(f"{one}/") for one in whole):
            continue
        target = run.path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        files.get_file(path, str(target))
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    return run
