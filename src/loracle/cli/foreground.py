"""`loracle train --foreground`: the training in this process, its lines on the terminal.

The libraries write progress bars and warnings to both streams, some below Python. They belong into
the run's log, where a detached run has them, so the streams themselves are turned there and only
our lines keep the way to the terminal.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from loracle.cli.output import Output
from loracle.cli.pipe import drain

if TYPE_CHECKING:
    from loracle.jobs.runs import RunFolder


def run_here(output: Output, run: "RunFolder", *, resume: bool) -> int:
    """Train in this process and tell its events; returns the exit code of the run's end.

    Under a launcher every process comes here; the first one tells.
    """
    from loracle.jobs.train.failure import failure_of
    from loracle.jobs.train.launch import mark_starting
    from loracle.jobs.train.process import main
    from loracle.jobs.train.world import is_main

    arguments = [str(run.path), "--resume"] if resume else [str(run.path)]
    if not is_main():
        with _streams_in_log(run):
            return main(arguments)
    after = run.events_file.stat().st_size if run.events_file.is_file() else 0
    mark_starting(run, os.getpid())
    with _streams_in_log(run) as terminal, _telling(output, terminal, run, after):
        code = main(arguments)
    failure = failure_of(run)
    if failure is not None:
        output.error(failure)
    return code


@contextmanager
def _streams_in_log(run: "RunFolder") -> Iterator[TextIO]:
    """Both streams go to the run's log meanwhile; yields the way to the former stdout."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with run.log.open("ab") as log, open(os.dup(1), "w", encoding="utf-8") as terminal:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, kept in zip((1, 2), before, strict=True):
                os.dup2(kept, stream)
                os.close(kept)


@contextmanager
def _telling(output: Output, terminal: TextIO, run: "RunFolder", after: int) -> Iterator[None]:
    """Tell the run's events on the terminal meanwhile, from a thread of their own."""
    from loracle.cli.train_screen import Lines
    from loracle.jobs.train.launch import follow

    lines = Lines(Output(output.mode, output.language, stream=terminal), run)
    over = threading.Event()

    def tell() -> None:
        try:
            for event in follow(run, after=after):
                if event is None and over.is_set():
                    break
                lines.show(event)
            lines.close()
        except BrokenPipeError:  # nobody reads any more; the run goes on
            drain(terminal)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
