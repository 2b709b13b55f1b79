"""What a run reads, looked at before there is a run: a slip of the pen leaves no folder behind.

Only what costs next to nothing is asked here: is the file there, can it be read, does it hold a
row; is the model a folder with weights, or an id that the cache holds or a hub knows. Every row is
read and every weight loaded later, by the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loracle.catalog.datasets.reader import data_files
from loracle.catalog.datasets.rows import raw_rows
from loracle.catalog.hub import hub_config
from loracle.catalog.models import find_model
from loracle.domain.recipe import Recipe
from loracle.errors import DataError, InputError, LoracleError

_MODELSCOPE = "modelscope:"


def check_inputs(recipe: Recipe) -> None:
    """Raise what is wrong with the recipe's data and model.

    InputError E013 for a file that is missing or cannot be read and a model folder without
    weights, DataError E021 to E024 for a file that holds no rows, CatalogError E032 to E036 for a
    model that is nowhere.
    """
    for source in (recipe.data.train, recipe.data.eval):
        if source is not None:
            _check_data(source)
    _check_model(recipe.model)


def _check_data(source: str) -> None:
    with _hinting("hint.train.no_rows"):
        paths = data_files(source)
    for path in paths:
        try:
            if next(iter(raw_rows(path)), None) is not None:
                return
        except OSError as error:
            raise InputError(
                "error.train.unreadable", code="E013", hint="hint.train.unreadable",
                path=str(path), cause=error.strerror or str(error),
            ) from error  # fmt: skip
    raise DataError("error.data.empty", code="E024", hint="hint.train.no_rows", path=source)


def _check_model(model: str) -> None:
    with _hinting("hint.train.no_model"):
        find_model(model)
    path = Path(model).expanduser()
    folder = path.parent if path.name == "config.json" else path
    if folder.is_dir():
        if not any(one for kind in ("*.safetensors", "*.bin") for one in folder.glob(kind)):
            raise InputError(
                "error.train.no_weights", code="E013", hint="hint.train.no_weights", path=str(path)
            )
        return
    if not model.startswith(_MODELSCOPE):  # whose own cache is only known to its own library
        name, _, revision = model.partition("@")
        hub_config(name, revision=revision or None)


@contextmanager
def _hinting(hint: str) -> Iterator[None]:
    """Give an error that says what is wrong, and not what to do, its hint."""
    try:
        yield
    except LoracleError as error:
        error.hints = error.hints or (hint,)
        raise
