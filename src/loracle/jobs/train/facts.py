"""What a run stands on: hashes of the base, the data and the recipe, versions, the machine.

They go into `run.json`, so that a resume can refuse another recipe, a merge can repeat the very
quantisation, and an evaluation can prove that it asks what was trained.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import InputError, MissingExtra

_PACKAGES = (
    "loracle", "torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "datasets",
    "tokenizers", "safetensors",
)  # fmt: skip
_SAMPLED = 1 << 20
# What changes only where a run saves, how it is watched or what it may cost:
_NOT_LEARNED = {"rent", "save", "evaluation"}
_NOT_LEARNED_TRAINING = ("micro_batch", "gradient_checkpointing", "attention")


def model_source(model: str) -> str:
    """What `from_pretrained` takes: the folder or hub id; `modelscope:ID` is downloaded first."""
    if not model.startswith("modelscope:"):
        path = Path(model).expanduser()
        return str(path.parent if path.name == "config.json" else path if path.is_dir() else model)
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise MissingExtra("modelscope", "modelscope") from error
    return str(snapshot_download(model.removeprefix("modelscope:")))


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of what decides the weights; places, limits and memory knobs do not count."""
    document = recipe.model_dump(mode="json", exclude=_NOT_LEARNED)
    for name in _NOT_LEARNED_TRAINING:
        document["training"].pop(name)
    for name in ("train", "eval"):  # the files have hashes of their own
        document["data"].pop(name)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def recipe_changes(before: Mapping[str, object], recipe: Recipe) -> list[str]:
    """`key: old -> new` for each that decides the weights and differs from an earlier recipe."""
    new = recipe.model_dump(mode="json", exclude=_NOT_LEARNED)
    flat_old, flat_new = _flat(before), _flat(new)
    skipped = {f"training.{name}" for name in _NOT_LEARNED_TRAINING} | {"data.train", "data.eval"}
    return [
        f"{key}: {flat_old.get(key)} -> {value}"
        for key, value in flat_new.items()
        if key not in skipped and flat_old.get(key) != value
    ]


def fingerprint_model(folder: Path) -> str:
    """SHA-256 over config.json and, for each weight file, its size and three sampled blocks.

    Whole files would take minutes for a large model; the safetensors header (first block) holds
    every tensor's name, dtype and place, and the blocks in the middle and at the end tell tuned
    weights from others. Raises InputError E013 without a config.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise InputError("error.missing_file", code="E013", path=str(config))
    digest = hashlib.sha256(config.read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in (0, max(0, size // 2 - _SAMPLED // 2), max(0, size - _SAMPLED)):
                file.seek(start)
                digest.update(file.read(_SAMPLED))
    return digest.hexdigest()


def revision(source: str) -> str | None:
    """The commit of a model in the hub's cache: the name of its snapshot folder."""
    if Path(source).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json")
    return Path(path).parent.name if isinstance(path, str) else None


def versions() -> dict[str, str]:
    """Installed versions of what computes."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    """The card and the driver, or the processor; nothing that names the machine or its owner."""
    import torch

    facts: dict[str, object] = {"cores": os.cpu_count(), "system": platform.system()}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": properties.name,
            "num_gpus": int(os.environ.get("WORLD_SIZE", "1")),
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts


def setup_facts(setup: TrainingSetup) -> dict[str, object]:
    """The setup as plain data, with the model's id in place of its shape."""
    document = {k: v for k, v in asdict(setup.with_changes(model=None)).items() if k != "model"}
    return {"model": setup.model.id, **document}


def quant_facts(setup: TrainingSetup) -> dict[str, object] | None:
    """How the base was stored, with all that a merge needs to store it again the same way."""
    if setup.quant is None:
        return None
    if setup.quant == "int8":
        return {"type": "int8"}
    return {
        "type": "nf4",
        "double": setup.quant == "nf4-double",
        "block_size": 64,
        "compute_dtype": setup.base_dtype,
        "source_dtype": setup.base_dtype,
    }


def _flat(document: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found
