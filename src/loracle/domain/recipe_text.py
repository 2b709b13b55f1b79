"""From the text of a recipe to a `Recipe`: every fault found in one pass, each with its line.

pydantic knows what is wrong, PyYAML knows where it stands; this module brings the two together.
Numbers and booleans are read as YAML 1.2 reads them (`2e-4` is a number here, in YAML 1.1 it is
text), and nothing is converted in silence: `rank: "8"` and `rank: true` are faults.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from loracle.domain.recipe import Recipe
from loracle.domain.recipe_keys import Path, expected_of, nearest_key, shown
from loracle.errors import InputError, Problem, RecipeError
from loracle.units import parse_money, parse_seconds

_BOOL = re.compile(r"true|false|yes|no|on|off", re.IGNORECASE)
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ParsedRecipe:
    """A recipe and, for each key that was written, where: (file name, line) or the command line.

    Keys that are missing from `origins` have their default.
    """

    recipe: Recipe
    origins: Mapping[str, tuple[str, int | None]]


class _Loader(yaml.SafeLoader):
    """Aliases are refused: a recipe needs none, and a few lines of them can fill a machine."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="a recipe may hold no aliases", problem_mark=mark)
        return super().compose_node(parent, index)


@dataclass(slots=True)
class _Source:
    """What the text holds: plain data, the line of each key, and the faults of the text itself."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Path, int | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def parse_recipe(
    text: str | bytes, name: str = "recipe", overrides: Mapping[str, object] | None = None
) -> Recipe:
    """The recipe in a YAML text, with overrides such as `{"lora.rank": "8"}` on top.

    An override that is a string is read as YAML (`8`, `true`, `[q_proj, v_proj]`) unless its key
    holds text. Raises
    RecipeError E012 whose `problems` are all faults, each with key, line and nearest name.
    """
    return read_recipe(text, name, overrides).recipe


def read_recipe(
    text: str | bytes, name: str = "recipe", overrides: Mapping[str, object] | None = None
) -> ParsedRecipe:
    """As `parse_recipe`, and where each value came from."""
    source = _read_yaml(_decode(text, name) if isinstance(text, bytes) else text, name)
    for key, value in (overrides or {}).items():
        _override(source, key, value, name)
    recipe = _validate(source, name)
    if recipe is not None:
        _check_units(recipe, source, name)
    if source.problems or recipe is None:
        problems = tuple(source.problems)
        raise RecipeError("recipe.wrong", problems=problems, name=name, count=len(problems))
    origins = {
        ".".join(path): (name, line) if line else ("command line", None)
        for path, line in source.lines.items()
    }
    return ParsedRecipe(recipe, origins)


def _decode(raw: bytes, name: str) -> str:
    for mark, encoding in ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")):
        if raw.startswith(mark):
            raise RecipeError("recipe.encoding", hint="hint.encoding", name=name, found=encoding)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            "recipe.not_utf8", hint="hint.encoding", name=name, line=line, byte=error.start
        ) from error


def _read_yaml(text: str, name: str) -> _Source:
    source = _Source()
    try:
        root = yaml.compose(text, Loader=_Loader)
    except RecursionError as error:
        raise RecipeError(
            "recipe.syntax", name=name, line=1, column=1, reason="nested too deeply"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        column = mark.column + 1 if mark else 1
        raise RecipeError(
            "recipe.syntax", name=name, line=line, column=column, reason=error.problem or ""
        ) from error
    except yaml.YAMLError as error:
        raise RecipeError(
            "recipe.syntax", name=name, line=1, column=1, reason=str(error).splitlines()[0]
        ) from error
    if root is None:
        return source
    if not isinstance(root, yaml.MappingNode):
        raise RecipeError("recipe.no_mapping", hint="hint.recipe_start", name=name)
    source.data = _mapping(root, (), source, name)
    return source


def _mapping(node: yaml.MappingNode, path: Path, source: _Source, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        here = (*path, key)
        if key in found:
            source.problems.append(
                Problem(
                    "recipe.duplicate_key",
                    code="E012",
                    name=name,
                    line=line,
                    key=".".join(here),
                    first=source.lines[here],
                )
            )
            continue
        source.lines[here] = line
        found[key] = _value(value_node, here, source, name)
    return found


def _value(node: yaml.Node, path: Path, source: _Source, name: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, source, name)
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, path, source, name) for child in node.value]
    value = _scalar(node)
    if isinstance(value, float) and not math.isfinite(value):
        source.problems.append(_problem("not_finite", path, source, name, got=node.value))
        return None
    return value


def _scalar(node: yaml.Node) -> object:
    """A plain scalar by the YAML 1.2 rules, plus yes/no/on/off; quoted text stays text."""
    text = str(node.value)
    if not isinstance(node, yaml.ScalarNode) or node.style in ("'", '"', "|", ">"):
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() in ("true", "yes", "on")
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.lower().replace(".", ""))
    return text


def _override(source: _Source, key: str, value: object, name: str) -> None:
    """Put a value from the command line in its place, over what the file says."""
    path = tuple(key.strip().split("."))
    if isinstance(value, str) and not expected_of(path).startswith("text"):
        value = _override_value(value)
    table = source.data
    for part in path[:-1]:
        inner = table.get(part)
        if not isinstance(inner, dict):
            inner = {}
            table[part] = inner
        table = inner
    source.lines[path] = None
    if isinstance(value, float) and not math.isfinite(value):
        source.problems.append(_problem("not_finite", path, source, name, got=value))
        return
    table[path[-1]] = value


def _override_value(text: str) -> object:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(child) for child in node.value]
    return _scalar(node) if isinstance(node, yaml.ScalarNode) else text


def _validate(source: _Source, name: str) -> Recipe | None:
    try:
        # JSON mode: strict about types, and lists still become tuples
        return Recipe.model_validate_json(json.dumps(source.data), strict=True)
    except ValidationError as error:
        told: set[Path] = set()
        for fault in error.errors():
            path = _key_path(fault["loc"])
            if path in told and fault["type"] != "value_error":
                continue
            told.add(path)
            source.problems.append(_of_pydantic(dict(fault), path, source, name))
    source.problems.sort(key=lambda problem: int(str(problem.values.get("line") or 0)))
    return None


def _check_units(recipe: Recipe, source: _Source, name: str) -> None:
    for path, text, read in (
        (("rent", "budget"), recipe.rent.budget, parse_money),
        (("rent", "deadline"), recipe.rent.deadline, parse_seconds),
    ):
        if text is None:
            continue
        try:
            read(text)
        except InputError as error:
            problem = _problem("bad_unit", path, source, name, text=text)
            problem.hints = error.hints
            source.problems.append(problem)


def _key_path(location: Sequence[int | str]) -> Path:
    """The key that a pydantic location points at: unions and list positions are left out."""
    path: Path = ()
    model: Any = Recipe
    for part in location:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            break
        path = (*path, str(part))
        known = model.model_fields.get(str(part))
        model = known.annotation if known else None
    return path


def _of_pydantic(fault: dict[str, Any], path: Path, source: _Source, name: str) -> Problem:
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, source, name)
    if kind == "missing":
        return _problem("missing_key", path, source, name)
    if kind == "value_error":
        return Problem(str(context["error"]), code="E012", name=name, line=_line(path, source))
    got = _written(path, source)
    limit = next((context[k] for k in ("gt", "ge", "lt", "le") if k in context), None)
    if limit is not None and not _is_union(path):
        word = {"gt": "above", "ge": "at_least", "lt": "below", "le": "at_most"}
        which = next(k for k in word if k in context)
        return _problem(word[which], path, source, name, limit=shown(limit), got=got)
    return _problem("wrong_value", path, source, name, expected=expected_of(path), got=got)


def _unknown_key(path: Path, source: _Source, name: str) -> Problem:
    nearest = nearest_key(path)
    kind = "unknown_key_near" if nearest else "unknown_key"
    return _problem(kind, path, source, name, nearest=nearest or "")


def _is_union(path: Path) -> bool:
    return " | " in expected_of(path).replace(" | null", "")


def _written(path: Path, source: _Source) -> str:
    value: Any = source.data
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value, ensure_ascii=False)


def _line(path: Path, source: _Source) -> int | None:
    while path:
        if path in source.lines:
            return source.lines[path]
        path = path[:-1]
    return 1


def _problem(kind: str, path: Path, source: _Source, name: str, **values: Any) -> Problem:
    line = _line(path, source)
    family = "recipe" if line else "recipe.flag"
    return Problem(
        f"{family}.{kind}", code="E012", name=name, line=line, key=".".join(path), **values
    )
