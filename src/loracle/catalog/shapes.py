"""From a config.json to a `ModelShape`: every Linear layer and every parameter counted.

An architecture is a row of `data/architectures.toml`; what its words cannot say is one of the
laws in `catalog/layouts.py`. What a config.json leaves out is filled in as transformers' config
class fills it in. An architecture without a row is refused: guessing a layout gives a wrong
number that looks right.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from loracle.catalog.config_keys import Keys, facts_of
from loracle.catalog.layouts import LAWS
from loracle.domain.model import ModelShape
from loracle.errors import UnsupportedModel

ARCHITECTURES = Path(__file__).parent / "data" / "architectures.toml"

# A checkpoint with a vision or audio tower nests its decoder's config under text_config.
_NESTED = ("text_config", "llm_config", "language_config")
_TEXT_TYPE = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "qwen3_5": "qwen3_5_text",
    "mistral3": "mistral", "qwen2_5_vl": "qwen2", "qwen2_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2", "qwen2_vl_text": "qwen2",
}  # fmt: skip


def shape_from_config(config: Mapping[str, Any], id: str = "") -> ModelShape:  # noqa: A002
    """The shape that transformers 5.17 builds from this config.json.

    `config` is the file's content with its own key names; a multimodal config gives its text
    decoder. Raises UnsupportedModel (E033) for an architecture without a row, CatalogError (E034)
    for a value that no model can have.
    """
    config = _decoder_config(config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise UnsupportedModel("error.shape.no_type", hint="hint.shape.no_type", model=id)
    rows = architectures()
    if model_type not in rows:
        raise UnsupportedModel(
            "error.shape.unknown", hint="hint.shape.unknown", model=id, model_type=model_type
        )
    facts = facts_of(Keys(config, rows[model_type], id or model_type))
    return LAWS[str(rows[model_type]["law"])](facts)


def known_architectures() -> tuple[str, ...]:
    """The model types that have a row."""
    return tuple(architectures())


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Every row of the table with its base filled in."""
    raw = tomllib.loads(ARCHITECTURES.read_text("utf-8"))
    return {name: _inherited(raw, name) for name in raw}


def _inherited(raw: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    row = raw[name]
    if "base" not in row:
        return {"remote": False, "parallel": False, **row}
    base = _inherited(raw, row["base"])
    merged = {**base, **row}
    merged["defaults"] = {**base["defaults"], **row.get("defaults", {})}
    return merged


def _decoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            outer_type = str(config.get("model_type", ""))
            inner_type = inner.get("model_type", outer_type)
            tied = config.get("tie_word_embeddings")
            kept = {} if tied is None else {"tie_word_embeddings": tied}
            return {**kept, **inner, "model_type": _TEXT_TYPE.get(inner_type, inner_type)}
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in _TEXT_TYPE:
        return {**config, "model_type": _TEXT_TYPE[model_type]}
    return config
