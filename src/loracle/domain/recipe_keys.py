"""What keys a recipe may hold and what each accepts, read off the pydantic classes themselves.

Error messages and `loracle recipe show` need this; keeping a second list would let them drift.
"""

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from loracle.domain.recipe import Recipe

Path = tuple[str, ...]


def known_keys() -> tuple[str, ...]:
    """Every key that a recipe may hold, dotted, in the order of the schema."""
    return tuple(".".join(path) for path, _ in _leaves(Recipe, ()))


def nearest_key(path: Path) -> str | None:
    """The known key that a wrong one most likely stands for, or None where nothing is near.

    Looks in the same group first, then for the same last word in any group.
    """
    keys = [(*known,) for known, _ in _leaves(Recipe, ())]
    groups = [(group,) for group in dict.fromkeys(known[0] for known in keys)]
    here = [key for key in keys + groups if key[:-1] == path[:-1]]
    by_last = {key[-1]: key for key in reversed(here)}
    near = difflib.get_close_matches(path[-1], by_last, n=1, cutoff=0.6)
    if near:
        return ".".join(by_last[near[0]])
    elsewhere = {key[-1]: key for key in reversed(keys)}
    near = difflib.get_close_matches(path[-1], elsewhere, n=1, cutoff=0.8)
    if near:
        return ".".join(elsewhere[near[0]])
    dotted = [".".join(key) for key in keys]
    near = difflib.get_close_matches(".".join(path), dotted, n=1, cutoff=0.75)
    return near[0] if near else None


def expected_of(path: Path) -> str:
    """What a key accepts, in words that need no translation: `int > 0 | auto`."""
    for known, annotation in _leaves(Recipe, ()):
        if known == path:
            return " | ".join(dict.fromkeys(_kinds(annotation)))
    return "group"


def shown(limit: object) -> str:
    """A limit as a person writes it: `0`, `1,048,576`."""
    number = float(str(limit))
    return f"{number:g}" if abs(number) < 1e6 else f"{number:,.0f}"


def _kinds(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield from (str(choice) for choice in get_args(annotation))
    elif origin in (Union, UnionType):
        for option in get_args(annotation):
            yield from _kinds(option)
    elif origin is Annotated:
        inner, *limits = get_args(annotation)
        yield f"{next(_kinds(inner))}{_limits(limits)}"
    elif origin is tuple:
        yield "[name, ...]"
    elif annotation is type(None):
        yield "null"
    elif annotation is bool:
        yield "true | false"
    else:
        yield {int: "int", float: "number", str: "text"}.get(annotation, "group")


def _limits(metadata: Sequence[Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits: list[str] = []
    for entry in metadata:
        for part in (entry, *getattr(entry, "metadata", ())):
            limits += [
                f"{sign} {shown(getattr(part, key))}"
                for key, sign in signs.items()
                if getattr(part, key, None) is not None
            ]
    return " " + ", ".join(dict.fromkeys(limits)) if limits else ""


def _leaves(model: type[BaseModel], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _leaves(annotation, (*path, key))
        elif info.metadata:
            yield (*path, key), Annotated[annotation, *info.metadata]
        else:
            yield (*path, key), annotation
