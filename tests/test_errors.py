"""The error tree: codes are stable, errors survive pickling, exit codes follow the branch."""

import pickle

import pytest

from loracle import errors


def subclasses(kind):
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_error_has_a_code_of_the_stable_form():
    import re

    for kind in subclasses(errors.LoracleError):
        assert re.fullmatch(r"E\d{3}", kind.default_code), kind


@pytest.mark.parametrize(
    "error",
    [
        errors.InputError("error.unit", code="E011", hint="hint.unit.size", text="x"),
        errors.MissingExtra("train", "torch"),
        errors.RecipeError("error.recipe", problems=[errors.Problem("error.unit", text="a")]),
    ],
)
def test_pickle_keeps_everything(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.message, copy.hints, dict(copy.values)) == (
        error.code, error.message, error.hints, dict(error.values),
    )  # fmt: skip
    assert type(copy) is type(error)
    assert str(copy) == str(error)
