"""Every error that loracle raises, as one tree.

    LoracleError                 anything a caller may want to catch
    |-- InputError               the recipe, the flags or the data are wrong        exit 2
    |   |-- RecipeError          one or more keys of a recipe, all reported at once
    |   `-- DataError            rows of a data set, with line and column
    |-- CatalogError             a card, model or offer that is not known, a stale rate
    |   `-- UnsupportedModel     an architecture that the formula refuses to guess
    |-- EngineError              the dry run cannot predict this configuration
    |-- MachineError             this machine lacks something: a card, disk, a driver
    |   |-- MissingExtra         an optional dependency is not installed
    |   `-- NoCard               this cannot be tested here                           exit 3
    `-- RunError                 a run folder, checkpoint, adapter or merge is broken

An error carries a stable code (`E...`), a message id and the numbers that go into it. The text
in English and Chinese lives in the message files under `words/`, so tests and scripts match on
the code. A hint is a second message id that says what to do about it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar


class LoracleError(Exception):
    """Base of the tree: a code, a message id with its values, and an optional hint.

    `message` and `hint` are ids in the message files; `values` fills the placeholders of both.
    `exit_code` is what the command line returns for it: 2 for wrong input, 1 for "the answer is
    no", 3 for "this could not be tested here".
    """

    exit_code: ClassVar[int] = 2
    default_code: ClassVar[str] = "E000"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        hints: Sequence[str] = (),
        **values: object,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hints: tuple[str, ...] = ((hint,) if hint else ()) + tuple(hints)
        self.values: Mapping[str, object] = values

    def __str__(self) -> str:
        values = ", ".join(f"{key}={value!r}" for key, value in self.values.items())
        return f"{self.code} {self.message}" + (f" ({values})" if values else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(
    kind: type[LoracleError], args: tuple[object, ...], state: dict[str, object]
) -> LoracleError:
    """Unpickle an error of any subclass (worker processes send theirs home)."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(LoracleError):
    """What the user typed, wrote or pointed at is wrong; `problems` lists several faults."""

    default_code = "E010"

    def __init__(
        self,
        message: str,
        *,
        problems: "Sequence[Problem]" = (),
        code: str | None = None,
        hint: str | None = None,
        hints: Sequence[str] = (),
        **values: object,
    ) -> None:
        super().__init__(message, code=code, hint=hint, hints=hints, **values)
        self.problems = tuple(problems)


class Problem(LoracleError):
    """One of several faults found in one pass; never raised alone."""


class RecipeError(InputError):
    """A recipe with one or more wrong keys; `problems` lists them all."""

    default_code = "E012"


class DataError(InputError):
    """Rows of a data set that cannot be used; `problems` has file, line, column and reason."""

    default_code = "E020"


class CatalogError(LoracleError):
    """A name that no catalog holds, or a catalog value that cannot be trusted today."""

    default_code = "E030"


class UnsupportedModel(CatalogError):
    """The formula does not know this architecture and refuses to guess."""

    default_code = "E033"


class EngineError(LoracleError):
    """The dry run cannot predict this configuration; callers fall back to the formula."""

    default_code = "E040"


class MachineError(LoracleError):
    """Something about this machine stands in the way."""

    default_code = "E050"


class MissingExtra(MachineError):
    """An optional part of loracle is not installed; the hint holds the pip command."""

    default_code = "E051"

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            "error.missing_extra", hint="hint.missing_extra", extra=extra, package=package
        )


class NoCard(MachineError):
    """There is no card here on which this could be tested."""

    exit_code = 3
    default_code = "E072"


class RunError(LoracleError):
    """A run folder, checkpoint, adapter or merge that cannot be used as it is."""

    default_code = "E060"
