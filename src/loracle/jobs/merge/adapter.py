"""What an adapter folder holds, sorted by what each tensor does to the base.

Every key must find its place: a key that nobody reads is a change that the merge would lose
without a word. Kinds of adapter that this merge cannot do right are refused with the reason.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loracle.errors import RunError
from loracle.jobs.merge.tensors import TensorFile

_PREFIX = "base_model.model."
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # inits that rewrite the base
_PARTS = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.(?P<leaf>weight|bias))?$"
)
_TOKENS = re.compile(r"(?P<module>.+)\.token_adapter\.trainable_tokens_delta$")


@dataclass(slots=True)
class LoraModule:
    """The adapter of one module: keys of its tensors in the adapter's file, and its scaling."""

    name: str
    scaling: float
    a: str = ""
    b: str = ""
    magnitude: str | None = None
    bias: str | None = None
    is_embedding: bool = False


@dataclass(slots=True)
class Adapter:
    """An adapter folder, read: `lora` and `tokens` by module, `whole` by tensor name."""

    folder: Path
    config: Mapping[str, Any]
    file: TensorFile
    lora: dict[str, LoraModule] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)  # tensor name: key in the file
    tokens: dict[str, str] = field(default_factory=dict)  # module name: key in the file

    @property
    def base(self) -> str:
        """The base model's id or folder, as PEFT wrote it down."""
        return str(self.config.get("base_model_name_or_path") or "")

    @property
    def fan_in_fan_out(self) -> bool:
        """Whether the base's weights are stored (in, out), as GPT-2's are."""
        return bool(self.config.get("fan_in_fan_out"))

    def token_indices(self, module: str) -> list[int]:
        """Rows of an embedding that were trained."""
        indices = self.config.get("trainable_token_indices") or []
        if isinstance(indices, Mapping):
            leaf = module.rsplit(".", 1)[-1]
            indices = indices.get(module) or indices.get(leaf) or []
        return [int(one) for one in indices]


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder of PEFT.

    Raises:
        RunError: E076 no adapter there, E077 a broken file, E065 a kind that cannot be merged.
    """
    config, file = check_adapter(folder)
    _refuse_kinds(config)
    adapter = Adapter(folder, config, file)
    for key in adapter.file.entries:
        _sort(adapter, key)
    for module in adapter.lora.values():
        if not module.a or not module.b:
            raise _cannot("half", key=module.name)
        if module.is_embedding and module.magnitude:
            raise _cannot("dora_embedding", key=module.name)
    if bool(config.get("use_dora")) and any(one.magnitude is None for one in adapter.lora.values()):
        raise _cannot("dora_magnitude")
    return adapter


def check_adapter(folder: Path) -> tuple[Mapping[str, Any], TensorFile]:
    """Config and weight file of an adapter of any kind; raises RunError E076 or E077."""
    config = _config(folder)
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise RunError("error.merge.no_adapter", code="E076", path=str(folder))
    return config, TensorFile(weights)


def check_finite(file: TensorFile) -> None:
    """Refuse an adapter with values that are not numbers: RunError E077."""
    import torch

    for name, entry in file.entries.items():
        tensor = file.read(name)
        if torch.is_floating_point(tensor) and not bool(torch.isfinite(tensor.float()).all()):
            raise RunError(
                "error.merge.not_finite", code="E077", hint="hint.merge.not_finite",
                path=str(file.path), key=name, shape=list(entry.shape),
            )  # fmt: skip


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise RunError("error.merge.no_adapter", code="E076", path=str(folder))
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise RunError(
            "error.merge.broken_weights", code="E077", path=str(path), cause=str(error)
        ) from error
    if not isinstance(config, dict):
        raise RunError("error.merge.broken_weights", code="E077", path=str(path), cause="no object")
    return config


def _refuse_kinds(config: Mapping[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise _cannot("peft_type", key=str(config.get("peft_type")))
    init = str(config.get("init_lora_weights", "")).lower()
    if init.startswith(_CHANGES_BASE):
        raise _cannot("init", key=init)
    if config.get("target_parameters"):
        raise _cannot("target_parameters", key=", ".join(config["target_parameters"]))
    for name in ("layer_replication", "alora_invocation_tokens", "use_qalora", "velora_config",
                 "monteclora_config"):  # fmt: skip
        if config.get(name):
            raise _cannot("option", key=name)


def _sort(adapter: Adapter, key: str) -> None:
    name = key.removeprefix(_PREFIX)
    if match := _TOKENS.match(name):
        adapter.tokens[match["module"]] = key
    elif match := _PARTS.match(name):
        _add_part(adapter, match, key)
    elif "lora_" in name or name.endswith("_delta"):
        raise _cannot("unknown_key", key=key)
    else:
        plain = name.replace(".modules_to_save.", ".").replace(".base_layer.", ".")
        adapter.whole[plain] = key


def _add_part(adapter: Adapter, match: re.Match[str], key: str) -> None:
    name, part = match["module"], match["part"]
    module = adapter.lora.get(name)
    if module is None:
        module = LoraModule(name, scaling_of(adapter.config, name))
        adapter.lora[name] = module
    if part == "lora_magnitude_vector":
        module.magnitude = key
    elif match["leaf"] == "bias":
        if part == "lora_A":
            raise _cannot("unknown_key", key=key)
        module.bias = key
    elif part.endswith("_A"):
        module.a = key
    else:
        module.b = key
    module.is_embedding |= part.startswith("lora_embedding")


def scaling_of(config: Mapping[str, Any], module: str) -> float:
    """alpha / rank, or alpha / sqrt(rank) with rslora, after the config's patterns for a module."""
    rank = _by_pattern(config.get("rank_pattern") or {}, module, config["r"])
    alpha = _by_pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def _by_pattern(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """The value of the first pattern that is a suffix of the module's name (as PEFT matches)."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return otherwise


def _cannot(reason: str, key: str = "") -> RunError:
    return RunError(f"error.merge.cannot.{reason}", code="E065", key=key)
