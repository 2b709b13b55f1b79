"""The one sink: results on stdout, everything else on stderr, in one of four modes.

Modes are `human`, `json`, `md` and `quiet`. Commands build plain data (for JSON) and rows (for
people) and hand both over; nothing else prints.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn, TextIO

from loracle import words
from loracle.errors import InputError, LoracleError, RecipeError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MODES = ("human", "json", "md", "quiet")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading (already in the reader's language) and its side."""

    heading: str
    right: bool = False


class Output:
    """Where a command says what it has to say."""

    def __init__(
        self, mode: str = "human", language: str | None = None, stream: TextIO | None = None
    ) -> None:
        """`stream` takes plain lines instead of stdout."""
        self.mode = mode
        self._stream = stream
        self.language = language or words.detect_language()

    def text(self, message: str, **values: object) -> str:
        """The sentence of a message id in the reader's language."""
        return words.text(message, self.language, **values)

    def json(self, document: Mapping[str, object]) -> None:
        """One JSON document on stdout: base units, never translated."""
        sys.stdout.write(json.dumps(document, ensure_ascii=False, default=_plain, indent=1) + "\n")

    def line(self, sentence: str = "") -> None:
        """A plain line of the result on stdout."""
        stream = self._stream or sys.stdout
        stream.write(sentence + "\n")
        stream.flush()  # a run is followed through pipes and log files as well

    def render(self, renderable: "RenderableType") -> None:
        """A rich renderable on stdout."""
        self.console().print(renderable)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, dim: Sequence[int] = ()
    ) -> None:
        """A table without borders (Markdown in `md` mode); `dim` are row indices to grey out."""
        if self.mode == "md":
            self._markdown_table(columns, rows)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                Text(column.heading), justify="right" if column.right else "left", no_wrap=True
            )
        for index, row in enumerate(rows):
            table.add_row(*(Text(cell) for cell in row), style="dim" if index in dim else None)
        self.console().print(table)

    def _markdown_table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        self.line("| " + " | ".join(column.heading for column in columns) + " |")
        self.line("|" + "|".join("--:" if column.right else "---" for column in columns) + "|")
        for row in rows:
            self.line("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")

    def note(self, sentence: str) -> None:
        """Something worth knowing, on stderr; silent in quiet mode."""
        if self.mode != "quiet":
            sys.stderr.write(sentence + "\n")

    def warning(self, message: str, **values: object) -> None:
        """A warning line on stderr."""
        self.note(f"{self.text('label.warning')}: {self.text(message, **values)}")

    def hint(self, message: str, **values: object) -> None:
        """A hint line on stderr."""
        self.note(f"{self.text('label.hint')}: {self.text(message, **values)}")

    def error(self, error: LoracleError) -> None:
        """An error with its code, cause and hints; a JSON document on stdout in json mode."""
        if self.mode == "json":
            self.json(self._error_document(error))
            return
        label = self.text("label.error")
        for problem in error.problems if isinstance(error, InputError) else ():
            self._error_line(label, problem)
        if not (isinstance(error, RecipeError) and error.problems):
            self._error_line(label, error)

    def _error_line(self, label: str, error: LoracleError) -> None:
        sentence = self.text(error.message, **error.values)
        sys.stderr.write(f"{label}[{error.code}]: {sentence}\n")
        for hint in error.hints:
            sys.stderr.write(f"{self.text('label.hint')}: {self.text(hint, **error.values)}\n")

    def _error_document(self, error: LoracleError) -> dict[str, object]:
        document: dict[str, object] = {
            "schema": "loracle.error/1",
            "code": error.code,
            "message": error.message,
            "text": words.text(error.message, "en", **error.values),
            "hints": [words.text(hint, "en", **error.values) for hint in error.hints],
            "values": dict(error.values),
        }
        if isinstance(error, InputError) and error.problems:
            document["problems"] = [self._error_document(one) for one in error.problems]
        return document

    def fail(self, error: LoracleError) -> NoReturn:
        """Print the error and leave with its exit code."""
        self.error(error)
        raise SystemExit(error.exit_code)

    def console(self) -> "Console":
        """A rich console on stdout that honours NO_COLOR and a stated width."""
        from rich.console import Console

        width = int(os.environ.get("COLUMNS", "0") or 0)
        if not width and not sys.stdout.isatty():
            width = 120
        return Console(width=width or None, highlight=False, soft_wrap=False)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"not JSON: {type(value).__name__}")
