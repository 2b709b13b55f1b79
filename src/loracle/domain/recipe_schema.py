"""The JSON Schema of a recipe, for editors, with each key's docstring as its description.

pydantic can collect those docstrings itself, but does so while the classes are made, which would
cost every start of the command the time to parse a source file that one subcommand needs.
"""

import ast
import inspect
from itertools import pairwise
from typing import Any

from loracle.domain import recipe

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """The schema as plain data."""
    document = recipe.Recipe.model_json_schema()
    described = _docstrings()
    groups = {**document.get("$defs", {}), "Recipe": document}
    for name, schema in groups.items():
        for key, sentence in described.get(name, {}).items():
            schema["properties"][key].setdefault("description", sentence)
    return {"$schema": DRAFT, **document}


def _docstrings() -> dict[str, dict[str, str]]:
    """By class and key: the string that stands below the key in the source."""
    tree = ast.parse(inspect.getsource(recipe))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        keys = found.setdefault(node.name, {})
        for key, below in pairwise(node.body):
            sentence = _string(below)
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and sentence:
                keys[key.target.id] = sentence
    return found


def _string(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None
