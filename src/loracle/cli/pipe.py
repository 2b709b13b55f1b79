"""A reader that has read enough (`loracle ... | head`) ends a command, quietly and at once.

Python has no signal for it, and every library its own answer: rich and click leave with 1, which
our commands use for "the answer is no". So the streams themselves answer, before any library does.
The signal's default action would be simpler, and would end a run at a mirror's broken connection.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

EXIT_CODE = 141  # what a shell reports for a program that SIGPIPE ended


class Pipe:
    """A text stream that leaves with `EXIT_CODE` when nobody reads it any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's own."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()

    def writelines(self, lines: Iterable[str]) -> None:
        """As the stream's own."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """As the stream's own."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _leave(self) -> NoReturn:
        drain(self._stream)
        raise SystemExit(EXIT_CODE) from None


def drain(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere, instead of failing again at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def watched_streams() -> Iterator[None]:
    """Both standard streams under watch meanwhile, unless a terminal holds them.

    They are flushed at the end: a closed pipe is still ours to answer there, at the exit it is not.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (one if one.isatty() else Pipe(one) for one in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
