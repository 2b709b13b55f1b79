"""What a model folder holds beside the weights: config, generation config, tokenizer, template."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eom_id|>", "<turn|>")


def write_config(base: Path, folder: Path, *, unties: bool) -> None:
    """config.json without quantisation; remote code that it names is copied along."""
    config = _read(base / "config.json")
    config.pop("quantization_config", None)
    if unties:
        config["tie_word_embeddings"] = False
        if isinstance(config.get("text_config"), dict):
            config["text_config"]["tie_word_embeddings"] = False
    _write(folder / "config.json", config)
    for path in base.glob("*.py"):
        shutil.copyfile(path, folder / path.name)


def write_tokenizer(source: Path, base: Path, folder: Path) -> None:
    """The tokenizer's files and the chat template that were trained with; else the base's."""
    for name in TOKENIZER_FILES:
        own = source / name
        if own.is_file():
            shutil.copyfile(own, folder / name)
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        for name in TOKENIZER_FILES:
            if (base / name).is_file() and not (folder / name).is_file():
                shutil.copyfile(base / name, folder / name)
    for path in base.glob("*preprocessor_config.json"):
        shutil.copyfile(path, folder / path.name)


def write_generation_config(base: Path, tokenizer: Path, folder: Path) -> tuple[int, ...]:
    """generation_config.json with every token that ends an answer; returns their ids.

    The base's list, its config's, the tokenizer's end token, and the end-of-turn token that the
    chat template writes after the assistant: a server stops at these and at nothing else.
    """
    generation = _read(base / "generation_config.json")
    config = _read(base / "config.json")
    stops = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
    vocabulary = _special_ids(folder)
    tokenizer_config = _read(folder / "tokenizer_config.json")
    eos = tokenizer_config.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    template = _template(folder, tokenizer_config)
    marks = [mark for mark in _TURN_ENDS if mark in template]
    stops += [vocabulary[mark] for mark in (eos, *marks) if mark in vocabulary]
    ids = tuple(dict.fromkeys(stops))
    generation.pop("quantization_config", None)
    if ids:
        generation["eos_token_id"] = ids[0] if len(ids) == 1 else list(ids)
    pad = tokenizer_config.get("pad_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    if "pad_token_id" not in generation and pad in vocabulary:
        generation["pad_token_id"] = vocabulary[pad]
    if generation:
        _write(folder / "generation_config.json", generation)
    return ids


def _special_ids(folder: Path) -> dict[str, int]:
    """Special tokens by text, from tokenizer.json or the tokenizer's config."""
    found: dict[str, int] = {}
    for token in _read(folder / "tokenizer.json").get("added_tokens", ()):
        found[str(token["content"])] = int(token["id"])
    decoder = _read(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    for number, token in decoder.items():
        found.setdefault(str(token["content"]), int(number))
    return found


def _template(folder: Path, tokenizer_config: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    return json.dumps(tokenizer_config.get("chat_template") or "", ensure_ascii=False)


def _ids(value: object) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return [int(one) for one in values if isinstance(one, int)]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    document = json.loads(path.read_text("utf-8"))
    return document if isinstance(document, dict) else {}


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
