"""Every sentence that a person reads, in English and Chinese.

Message files are TOML, one per area, in `words/en` and `words/zh-CN`: flat tables whose dotted
path is the message id (`[plan] title = "..."` is `plan.title`). Placeholders are Python format
fields and must be the same in both languages. English is complete; a Chinese message that is
missing falls back to English, and the parity test fails.
"""

import os
import sys
import tomllib
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh-CN")
_CHINESE = ("zh", "zh-cn", "zh_cn", "zh-hans", "zh-sg", "zh_sg", "zh-hans-cn")


def language_of(tag: str) -> str:
    """The language that a BCP-47 tag or a POSIX locale stands for; English where unknown."""
    return "zh-CN" if tag.split(".")[0].lower().replace("_", "-") in _CHINESE else "en"


def detect_language() -> str:
    """From `--lang` on the command line, then LORACLE_LANG, LC_ALL, LC_MESSAGES, LANG."""
    arguments = sys.argv[1:]
    for index, argument in enumerate(arguments):
        if argument == "--lang" and index + 1 < len(arguments):
            return language_of(arguments[index + 1])
        if argument.startswith("--lang="):
            return language_of(argument.partition("=")[2])
    for name in ("LORACLE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if tag := os.environ.get(name):
            return language_of(tag)
    return "en"


@cache
def messages(language: str) -> dict[str, str]:
    """Every message of one language, by id."""
    found: dict[str, str] = {}
    for area in _areas(language):
        found |= _area(language, area)
    return found


def text(message: str, language: str | None = None, /, **values: object) -> str:
    """The sentence for a message id with its values put in; the id itself where unknown."""
    chosen = language or detect_language()
    sentence = _find(message, chosen) or _find(message, "en")
    if sentence is None:
        return message + (f" {values}" if values else "")
    return sentence.format(**values) if values else sentence


def has(message: str) -> bool:
    """Whether English knows this message id."""
    return _find(message, "en") is not None


@cache
def _areas(language: str) -> tuple[str, ...]:
    folder = Path(__file__).parent / language
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


@cache
def _area(language: str, area: str) -> dict[str, str]:
    """The messages of one file. A command needs three or four of some twenty."""
    _loaded.setdefault(language, []).append(area)
    found: dict[str, str] = {}
    path = Path(__file__).parent / language / f"{area}.toml"
    _flatten(tomllib.loads(path.read_text("utf-8")), "", found)
    return found


_loaded: dict[str, list[str]] = {}


def _find(message: str, language: str) -> str | None:
    """Look where the id points (`help.plan`: plan), then in files already read, then in all."""
    areas = _areas(language)
    words_of_id = message.replace("-", "_").split(".")
    pointed = [area for area in areas if any(word.split("_")[0] == area for word in words_of_id)]
    for area in dict.fromkeys((*pointed, *_loaded.get(language, ()), "core", *areas)):
        sentence = _area(language, area).get(message)
        if sentence is not None:
            return sentence
    return None


def _flatten(table: dict[str, object], prefix: str, into: dict[str, str]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}.", into)
        else:
            into[f"{prefix}{key}"] = str(value)
