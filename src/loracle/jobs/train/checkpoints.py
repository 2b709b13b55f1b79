"""Checkpoints that are whole or do not exist, and the choice of the one to go on from.

A checkpoint is written into a folder whose name starts with a dot, every file flushed to the
disk, then given a manifest of hashes, and only then its name. A kill at any moment leaves the
previous ones as they were. Before a resume, sizes and hashes are checked; a broken checkpoint is
passed over, never repaired.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loracle.errors import RunError
from loracle.jobs.runs import read_json, write_json

SCHEMA = "loracle.checkpoint/1"
MANIFEST = "manifest.json"
_PREFIX = "step-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint folder."""

    path: Path

    @property
    def step(self) -> int:
        """Optimizer steps done when it was written."""
        return int(self.path.name.removeprefix(_PREFIX))

    def manifest(self) -> dict[str, object]:
        """What was written, and under which recipe; raises RunError E061."""
        return read_json(self.path / MANIFEST)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"{_PREFIX}{step:06d}"


def writing_path(folder: Path) -> Path:
    """Where a checkpoint is written before it is one."""
    return folder / ".writing"


def clear_unfinished(folder: Path) -> int:
    """Remove what a killed process left half written; returns how many folders."""
    leftovers = [path for path in folder.glob(".*") if path.is_dir()]
    for path in leftovers:
        shutil.rmtree(path)
    return len(leftovers)


def finish(written: Path, folder: Path, step: int, **facts: object) -> Checkpoint:
    """Turn a fully written folder into the checkpoint of `step`: flush, manifest, rename.

    `facts` (recipe hash, batch shape, loss ...) go into the manifest. A whole checkpoint of the
    same step stays as it is. Raises OSError where the disk refuses.
    """
    files = {}
    for path in sorted(path for path in written.rglob("*") if path.is_file()):
        files[path.relative_to(written).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": _flush_and_hash(path),
        }
    write_json(written / MANIFEST, {"schema": SCHEMA, "step": step, **facts, "files": files})
    _flush_folder(written)
    target = checkpoint_path(folder, step)
    if target.exists():
        if next(faults(Checkpoint(target)), None) is None:
            shutil.rmtree(written)
            return Checkpoint(target)
        _remove(target)
    written.rename(target)
    _flush_folder(folder)
    return Checkpoint(target)


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Finished checkpoints, oldest first; none is checked."""
    found = [
        Checkpoint(path)
        for path in folder.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdigit() and path.is_dir()
    ]
    return sorted(found, key=lambda one: one.step)


def faults(checkpoint: Checkpoint) -> Iterator[str]:
    """Each file that is missing, has another size or another hash; nothing for a whole one."""
    try:
        listed = checkpoint.manifest()["files"]
    except (RunError, KeyError):
        yield MANIFEST
        return
    assert isinstance(listed, Mapping)
    for name, facts in listed.items():
        path = checkpoint.path / name
        if (
            not path.is_file()
            or path.stat().st_size != facts["bytes"]
            or _hash(path) != facts["sha256"]
        ):
            yield name


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[tuple[Checkpoint, str]]]:
    """The newest checkpoint without a fault, and those passed over with their first fault."""
    broken: list[tuple[Checkpoint, str]] = []
    for checkpoint in reversed(list_checkpoints(folder)):
        fault = next(faults(checkpoint), None)
        if fault is None:
            return checkpoint, broken
        broken.append((checkpoint, fault))
    return None, broken


def keep_newest(folder: Path, keep: int, best_step: int | None) -> list[int]:
    """Delete all but the newest `keep` and the best; returns the steps that went."""
    gone: list[int] = []
    for checkpoint in list_checkpoints(folder)[:-keep]:
        if checkpoint.step != best_step:
            _remove(checkpoint.path)
            gone.append(checkpoint.step)
    return gone


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove(path: Path) -> None:
    """Take the name away first: a kill halfway must not leave half a checkpoint."""
    aside = path.with_name(f".gone-{path.name}")
    path.rename(aside)
    shutil.rmtree(aside)


def _flush_and_hash(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _hash(path)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
