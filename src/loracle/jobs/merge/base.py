"""The base model's folder: where each tensor lies, and whether it can be merged into."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from loracle.errors import MissingExtra, RunError
from loracle.jobs.merge.tensors import TensorFile

INDEX = "model.safetensors.index.json"
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


@dataclass
class Base:
    """A 16-bit base: config, shard files in order, and the shard of each tensor."""

    folder: Path
    config: Mapping[str, Any]
    shards: dict[str, TensorFile] = field(default_factory=dict)  # file name: file
    has_index: bool = False

    @cached_property
    def shard_of(self) -> dict[str, str]:
        """Tensor name to shard file name."""
        return {name: shard for shard, file in self.shards.items() for name in file.entries}

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        files = self.shards.values()
        return sum(entry.num_bytes for file in files for entry in file.entries.values())

    @property
    def largest_shard_bytes(self) -> int:
        """Bytes of the largest shard file."""
        return max(file.path.stat().st_size for file in self.shards.values())

    @property
    def ties_embeddings(self) -> bool:
        """Whether the output head is the embedding."""
        for config in (self.config.get("text_config") or {}, self.config):
            if "tie_word_embeddings" in config:
                return bool(config["tie_word_embeddings"])
        return not any(name.endswith("lm_head.weight") for name in self.shard_of)


def read_base(folder: Path) -> Base:
    """Read a model folder's config and headers; no weights.

    Raises RunError E078: no safetensors, a quantised base, a shard of the index that is missing;
    E077: a broken file.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError("error.merge.no_base", code="E078", path=str(folder)) from error
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "?")
        raise RunError(
            "error.merge.quantised_base", code="E078", hint="hint.merge.base16",
            path=str(folder), method=method,
        )  # fmt: skip
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(_read_index(index)["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        names = ["model.safetensors"]
    else:
        raise RunError(
            "error.merge.no_base", code="E078", hint="hint.merge.safetensors", path=str(folder)
        )
    for name in names:
        if not (folder / name).is_file():
            raise RunError("error.merge.shard_missing", code="E078", path=str(folder / name))
    shards = {name: TensorFile(folder / name) for name in names}
    return Base(folder, config, shards, has_index=index.is_file())


def find_base(reference: str) -> Path:
    """The folder of a base by path or hub id; weights are fetched through the hub's cache.

    Raises RunError E078 where it cannot be had, MissingExtra without huggingface_hub.
    """
    path = Path(reference).expanduser()
    if path.is_file():
        return path.parent
    if path.is_dir():
        return path
    refuse_gone(reference)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise MissingExtra("hub", "huggingface_hub") from error
    try:
        return Path(snapshot_download(reference, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            "error.merge.base_not_found", code="E078", hint="hint.merge.base", base=reference,
            cause=cause,
        ) from error  # fmt: skip


def refuse_gone(reference: str) -> None:
    """Raise RunError E078 for a path that is not there: no hub has it either."""
    is_path = reference.startswith(("/", "./", "../", "~")) or reference.count("/") > 1
    if is_path and not Path(reference).expanduser().exists():
        raise RunError("error.merge.base_gone", code="E078", hint="hint.merge.base", base=reference)


def _read_index(path: Path) -> Mapping[str, Any]:
    try:
        index = json.loads(path.read_text("utf-8"))
        if not isinstance(index["weight_map"], dict):
            raise ValueError("weight_map")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            "error.merge.broken_weights", code="E077", path=str(path), cause=str(error)
        ) from error
    return dict(index)
