"""Which tensor of the base each part of the adapter changes, settled before a byte is written."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from loracle.errors import RunError
from loracle.jobs.merge.adapter import Adapter, LoraModule
from loracle.jobs.merge.base import Base
from loracle.jobs.merge.tensors import Entry

_LAYER = re.compile(r"\.(\d+)\.")
_HEADS = ("lm_head", "embed_out", "output_layer")


@dataclass(slots=True)
class Changes:
    """Per tensor of the base: the module's adapter, a replacement, or rows of new tokens.

    `added` are tensors that the base lacks (a head that was tied): name to the adapter's key, or
    to the name of the base tensor that they are a copy of. `unties` says that embedding and head
    part ways.
    """

    lora: dict[str, LoraModule] = field(default_factory=dict)
    biases: dict[str, LoraModule] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)  # tensor: module
    added_from_adapter: dict[str, str] = field(default_factory=dict)
    added_copies: dict[str, str] = field(default_factory=dict)
    unties: bool = False


def match(base: Base, adapter: Adapter) -> Changes:
    """Find the base tensor of every part of an adapter.

    Raises RunError E065 where a part has no tensor, or one of another shape (another base), or
    where a tied embedding would be changed for one use only.
    """
    changes = Changes()
    names = _Names(base)
    for module in adapter.lora.values():
        if base.ties_embeddings and (module.is_embedding or _is_head(module.name)):
            raise RunError("error.merge.cannot.tied", code="E065", key=module.name)
        tensor = names.find(module.name, "weight")
        _check_shape(base, adapter, module, tensor)
        changes.lora[tensor] = module
        if module.bias is not None:
            changes.biases[names.find(module.name, "bias")] = module
    for name, key in adapter.whole.items():
        _match_whole(base, adapter, names, name, key, changes)
    for module_name in adapter.tokens:
        changes.tokens[names.find(module_name, "weight")] = module_name
    _check_whole(base, adapter, changes)
    return changes


def _check_whole(base: Base, adapter: Adapter, changes: Changes) -> None:
    """Refuse an adapter with holes: a kind of layer that is adapted here and not there.

    Only where the config names targets by their last parts for all layers, as it does after
    `all-linear` too; layers past the config's count (a next-token head of its own) do not count.
    """
    config, text = adapter.config, base.config.get("text_config") or {}
    targets = config.get("target_modules")
    chosen = any(config.get(key) for key in ("layers_to_transform", "exclude_modules"))
    if not isinstance(targets, list) or chosen or any(_LAYER.search(f"{one}.") for one in targets):
        return
    count = base.config.get("num_hidden_layers") or text.get("num_hidden_layers") or 0
    split = [match for name in changes.lora if (match := _LAYER.search(name))]
    kinds = {(one.string[: one.start()], one.string[one.end() :]) for one in split}
    for name in base.shard_of:
        match = _LAYER.search(name)
        if match is None or name in changes.lora or int(match[1]) >= count:
            continue
        if (name[: match.start()], name[match.end() :]) in kinds:
            raise RunError(
                "error.merge.hole", code="E077", hint="hint.merge.hole",
                path=str(adapter.file.path), key=name.removesuffix(".weight"),
            )  # fmt: skip


class _Names:
    """Module names of the model in memory to tensor names on disk.

    They are mostly equal. Some checkpoints lack or carry a prefix (`model.`, `transformer.`), so a
    name may also match by what follows its first parts, as long as only one tensor does.
    """

    def __init__(self, base: Base) -> None:
        self._tensors = base.shard_of.keys()
        self._by_end: dict[str, list[str]] = {}
        for name in self._tensors:
            for end in _ends(name):
                self._by_end.setdefault(end, []).append(name)

    def find(self, module: str, leaf: str) -> str:
        """The tensor of a module; raises RunError E065."""
        wanted = f"{module}.{leaf}"
        if wanted in self._tensors:
            return wanted
        for end in _ends(wanted):
            found = self._by_end.get(end, [])
            if len(found) == 1:
                return found[0]
            if len(found) > 1:
                break
        reason = "experts" if ".experts" in module else "no_tensor"
        raise RunError(f"error.merge.cannot.{reason}", code="E065", key=wanted)

    def has(self, tensor: str) -> bool:
        """Whether the base has a tensor of exactly this name."""
        return tensor in self._tensors


def _ends(name: str) -> Iterable[str]:
    """The name without its first one, two or three parts, while a leaf's module is left."""
    parts = name.split(".")
    return [".".join(parts[skip:]) for skip in range(min(4, len(parts) - 1))]


def _match_whole(
    base: Base, adapter: Adapter, names: _Names, name: str, key: str, changes: Changes
) -> None:
    """A tensor that was trained whole: `modules_to_save`, or a bias."""
    entry = adapter.file.entries[key]
    if names.has(name):
        if base.shards[base.shard_of[name]].entries[name].shape != entry.shape:
            raise _wrong_shape(name, entry.shape, base)
        changes.whole[name] = key
    elif _is_head(name.rsplit(".", 1)[0]) and base.ties_embeddings:
        changes.added_from_adapter[name] = key
        changes.unties = True
        return
    else:
        module, _, leaf = name.rpartition(".")
        changes.whole[names.find(module, leaf)] = key
    keeps_tie = bool(adapter.config.get("ensure_weight_tying"))
    head_saved = any(_is_head(one.rsplit(".", 1)[0]) for one in adapter.whole)
    if base.ties_embeddings and _is_embedding(base, name) and not keeps_tie and not head_saved:
        changes.added_copies["lm_head.weight"] = name
        changes.unties = True


def _is_head(module: str) -> bool:
    return module.rsplit(".", 1)[-1] in _HEADS


def _is_embedding(base: Base, name: str) -> bool:
    text_config = base.config.get("text_config") or {}
    vocab = base.config.get("vocab_size") or text_config.get("vocab_size")
    shape = base.shards[base.shard_of[name]].entries[name].shape
    return (len(shape) == 2 and shape[0] == vocab and "emb" in name) or name.endswith("wte.weight")


def _check_shape(base: Base, adapter: Adapter, module: LoraModule, tensor: str) -> None:
    weight = base.shards[base.shard_of[tensor]].entries[tensor].shape
    a, b = adapter.file.entries[module.a].shape, adapter.file.entries[module.b].shape
    expected = (a[1], b[0]) if module.is_embedding else (b[0], a[1])
    if adapter.fan_in_fan_out:
        expected = expected[::-1]
    if len(weight) != 2 or weight != expected:
        raise _wrong_shape(tensor, expected, base)


def _wrong_shape(tensor: str, expected: tuple[int, ...], base: Base) -> RunError:
    entry: Entry = base.shards[base.shard_of[tensor]].entries[tensor]
    return RunError(
        "error.merge.wrong_base", code="E079", hint="hint.merge.base", tensor=tensor,
        base_shape=list(entry.shape), adapter_shape=list(expected), base=str(base.folder),
    )  # fmt: skip
