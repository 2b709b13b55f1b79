"""Reading a recipe file with the flags that override it: the same for every command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.errors import InputError

if TYPE_CHECKING:
    from loracle.domain.recipe_text import ParsedRecipe


def read_recipe_file(path: str, overrides: Mapping[str, object] | None = None) -> "ParsedRecipe":
    """The recipe in a file. Raises InputError E013 (no such file) or RecipeError E012."""
    from loracle.domain.recipe_text import read_recipe

    file = Path(path)
    if not file.exists():
        raise InputError("error.missing_file", code="E013", path=path)
    if file.is_dir():
        raise InputError("error.is_folder", code="E013", path=path)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise InputError(
            "error.unreadable", code="E013", path=path, reason=error.strerror or str(error)
        ) from error
    return read_recipe(raw, path, overrides)


def overrides_of(assignments: Sequence[str]) -> dict[str, object]:
    """`["lora.rank=8"]` as overrides. Raises InputError E011 for one without `=`."""
    found: dict[str, object] = {}
    for assignment in assignments:
        key, sign, value = assignment.partition("=")
        if not sign or not key.strip():
            raise InputError(
                "error.assignment", code="E011", hint="hint.assignment", text=assignment
            )
        found[key.strip()] = value
    return found
