"""Turning the faults of disks into one clear error, wherever a job writes results."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loracle.errors import MachineError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise MachineError for what the operating system refuses while `path` is written.

    E053 where the disk or the quota is full, E054 for the rest (read-only, no such place, not
    ours). A broken pipe is a reader that has gone and passes through.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        if error.errno in _FULL:
            raise MachineError(
                "error.disk_full", code="E053", hint="hint.disk_full", path=str(path), cause=cause
            ) from error
        raise MachineError(
            "error.not_written", code="E054", hint="hint.not_written", path=str(path), cause=cause
        ) from error
