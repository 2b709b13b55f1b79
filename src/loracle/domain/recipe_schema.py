"""JSON Schemas for editors, with the docstring below each key as its description.

pydantic can collect those docstrings itself, but does so while the classes are made, which would
cost every start of the command the time to parse source files that one subcommand needs.
"""

import ast
import inspect
import sys
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from loracle.domain.recipe import Recipe

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe as plain data."""
    return {"$schema": DRAFT, **described_schema(Recipe)}


def described_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model whose module documents keys by a string below each."""
    document = model.model_json_schema()
    described = _docstrings(inspect.getsource(sys.modules[model.__module__]))
    groups = {**document.get("$defs", {}), model.__name__: document}
    for name, schema in groups.items():
        for key, sentence in described.get(name, {}).items():
            if key in schema.get("properties", {}):
                schema["properties"][key].setdefault("description", sentence)
    return document


def _docstrings(source: str) -> dict[str, dict[str, str]]:
    """By class and key: the string that stands below the key in the source."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
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
