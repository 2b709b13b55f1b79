"""A progress bar for the dry run, from its second second on, and only on a terminal."""

import sys
import time
from types import TracebackType
from typing import Any

from loracle.cli.output import Output

PATIENCE_SECONDS = 1.0


class TraceProgress:
    """Called with the share that is done; shows nothing where the work is quick."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "TraceProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float) -> None:
        """Show that `share` (0 to 1) of the dry run is done."""
        if self._bar is None and self._wanted():
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=share)

    def _wanted(self) -> bool:
        patient = time.monotonic() - self._started < PATIENCE_SECONDS
        return not patient and self._output.mode == "human" and sys.stderr.isatty()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._output.text("plan.dry_running"), total=1.0)
        self._bar.start()
