"""The models: shapes that need no hub, and the way to any other model's shape.

A row of `data/models.json` holds a config and the parameter count that was checked against the
published one; the shape comes out of the same law as for a config.json from anywhere
(`catalog/shapes.py`), so a model of the catalog and a local copy of it cannot disagree.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from loracle.catalog import hub
from loracle.catalog.names import nearest
from loracle.catalog.shapes import shape_from_config
from loracle.domain.gpu import Sourced
from loracle.domain.model import ModelShape
from loracle.errors import CatalogError, MissingExtra

DATA = Path(__file__).parent / "data" / "models.json"
_MODELSCOPE = "modelscope:"


def load_models() -> tuple[ModelShape, ...]:
    """Every model of the catalog, in the order of the data file."""
    return tuple(_shape(row) for row in _document()["models"])


def find_model(ref: str, *, offline: bool = False) -> ModelShape:
    """The shape that a reference means.

    `ref` is an id of the catalog (any case, the part after the slash alone, an id of the same
    shape, or its ModelScope id), `modelscope:ID`, a folder or a config.json, or else a Hub id,
    with `@revision` if wanted. `offline` never asks a hub, but reads the hub's cache.

    Raises CatalogError E032 (no such model, or none without the extra `hub`), E035 (a broken
    file), E036 (a hub that cannot be asked), UnsupportedModel E033 (no law for the architecture).
    """
    ref = ref.strip()
    if local := _local_path(ref):
        return _local_shape(local)
    if ref.lower().startswith(_MODELSCOPE):
        return _modelscope_shape(ref[len(_MODELSCOPE) :], offline=offline)
    model_id, _, revision = ref.partition("@")
    if not revision and (row := _catalog_row(model_id)):
        return _shape(row, model_id)
    return _hub_shape(model_id, revision or None, offline=offline)


def tokenizer_folder(ref: str, *, offline: bool = False) -> Path:
    """A local folder with the model's tokenizer files, from disk, cache or hub; never weights.

    Errors as `find_model`, E032 where the model comes without a tokenizer.
    """
    ref = ref.strip()
    if local := _local_path(ref):
        folder = local if local.is_dir() else local.parent
        if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
            return folder
        raise CatalogError(
            "error.hub.no_file", code="E032", hint="hint.hub.no_file",
            model=ref, file="tokenizer.json",
        )  # fmt: skip
    if ref.lower().startswith(_MODELSCOPE):
        model_id, _, revision = ref[len(_MODELSCOPE) :].partition("@")
        return hub.modelscope_tokenizer(model_id, revision=revision or None, offline=offline)
    model_id, _, revision = ref.partition("@")
    row = None if revision else _catalog_row(model_id)
    return hub.hub_tokenizer(
        _spelled(row, model_id) if row else model_id, revision=revision or None, offline=offline
    )


def known_models() -> tuple[str, ...]:
    """Every Hub id that the catalog answers to, same-shape ids included."""
    rows = _document()["models"]
    return tuple(dict.fromkeys(name for row in rows for name in (row["id"], *row["same_shape"])))


def _local_path(ref: str) -> Path | None:
    """The path that a reference means, or None for an id.

    An id such as `Qwen/Qwen3-8B` is a folder only where one of that name holds a config.
    """
    looks_like_path = ref.startswith((".", "/", "~", "\\")) or ref.endswith(".json")
    looks_like_path = looks_like_path or re.match(r"^[A-Za-z]:[\\/]", ref) is not None
    path = Path(ref).expanduser()
    try:
        if looks_like_path or (ref and (path / "config.json").is_file()):
            return path
    except OSError:
        return None  # longer than a path may be: not a path
    return None


def _local_shape(path: Path) -> ModelShape:
    if not path.exists():
        raise CatalogError("error.missing_file", code="E032", path=str(path))
    if path.is_file():
        return shape_from_config(hub.read_config(path), str(path))
    config = path / "config.json"
    adapter = path / "adapter_config.json"
    if not config.is_file() and adapter.is_file():
        base = hub.read_config(adapter).get("base_model_name_or_path", "?")
        raise CatalogError(
            "error.model.adapter", code="E032", hint="hint.model.adapter", path=str(path), base=base
        )
    if not config.is_file():
        raise CatalogError(
            "error.model.no_config", code="E032", hint="hint.model.no_config", path=str(path)
        )
    return shape_from_config(hub.read_config(config), str(path))


def _hub_shape(model_id: str, revision: str | None, *, offline: bool) -> ModelShape:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model_id):
        raise _unknown(model_id)
    try:
        path = hub.hub_config(model_id, revision=revision, offline=offline)
    except MissingExtra as error:
        raise _not_here(model_id) from error
    except CatalogError as error:
        raise _with_nearest(error, model_id) from error
    found = Sourced("config.json on the Hugging Face Hub", revision or "main")
    return replace(shape_from_config(hub.read_config(path), model_id), sources={"shape": found})


def _modelscope_shape(ref: str, *, offline: bool) -> ModelShape:
    model_id, _, revision = ref.partition("@")
    if not revision and (row := _by_modelscope_id().get(model_id.lower())):
        return _shape(row)
    try:
        path = hub.modelscope_config(model_id, revision=revision or None, offline=offline)
    except CatalogError as error:
        raise _with_nearest(error, model_id) from error
    shape = shape_from_config(hub.read_config(path), model_id)
    found = Sourced("config.json on ModelScope", revision or "master")
    return replace(shape, modelscope_id=model_id, sources={"shape": found})


def _not_here(name: str) -> CatalogError:
    """The catalog lacks the model, and this install cannot ask the Hub for it."""
    return _with_nearest(
        CatalogError(
            "error.model.not_here", code="E032", hint="hint.missing_extra", model=name, extra="hub"
        ),
        name,
    )


def _unknown(name: str) -> CatalogError:
    error = CatalogError("error.model.unknown", code="E032", hint="hint.model.unknown", model=name)
    return _with_nearest(error, name)


def _with_nearest(error: CatalogError, name: str) -> CatalogError:
    """The same error, with the catalog's nearest names as its first hint where there are any."""
    names = nearest(name, known_models())
    hints = (("hint.catalog.nearest",) if names else ()) + error.hints
    values: dict[str, Any] = {**error.values, "names": ", ".join(names)}
    return CatalogError(error.message, code=error.code, hints=hints, **values)


def _catalog_row(name: str) -> Mapping[str, Any] | None:
    wanted = name.lower()
    return (
        _by_id().get(wanted)
        or _by_modelscope_id().get(wanted)
        or (_by_leaf().get(wanted) if "/" not in wanted else None)
    )


def _spelled(row: Mapping[str, Any], name: str) -> str:
    """The Hub's own spelling of what the user typed: the row's id, or its same-shape id."""
    for known in row["same_shape"]:
        if name.lower() in (known.lower(), known.lower().rpartition("/")[2]):
            return str(known)
    return str(row["id"])


def _shape(row: Mapping[str, Any], name: str = "") -> ModelShape:
    shape = shape_from_config(row["hf_config"], row["id"])
    date = _document()["date"]
    return replace(
        shape,
        id=_spelled(row, name),
        family=row["family"],
        license=row["license"],
        gated=row["gated"],
        modelscope_id=row["modelscope_id"],
        same_shape=tuple(row["same_shape"]),
        buildable=row["buildable"],
        sources={key: Sourced(text, date) for key, text in row["sources"].items()},
    )


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return document


@cache
def _by_id() -> dict[str, Mapping[str, Any]]:
    rows = _document()["models"]
    same = {name.lower(): row for row in reversed(rows) for name in row["same_shape"]}
    return same | {row["id"].lower(): row for row in rows}


@cache
def _by_modelscope_id() -> dict[str, Mapping[str, Any]]:
    rows = _document()["models"]
    return {row["modelscope_id"].lower(): row for row in rows if row["modelscope_id"]}


@cache
def _by_leaf() -> dict[str, Mapping[str, Any]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in _by_id().items():
        found.setdefault(name.rpartition("/")[2], []).append(row)
    return {leaf: rows[0] for leaf, rows in found.items() if len({row["id"] for row in rows}) == 1}
