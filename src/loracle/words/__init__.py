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
    for path in sorted((Path(__file__).parent / language).glob("*.toml")):
        _flatten(tomllib.loads(path.read_text("utf-8")), "", found)
    return found


def text(message: str, language: str | None = None, /, **values: object) -> str:
    """The sentence for a message id with its values put in; the id itself where unknown."""
    chosen = language or detect_language()
    sentence = messages(chosen).get(message) or messages("en").get(message)
    if sentence is None:
        return message + (f" {values}" if values else "")
    return sentence.format(**values) if values else sentence


def has(message: str) -> bool:
    """Whether English knows this message id."""
    return message in messages("en")


def _flatten(table: dict[str, object], prefix: str, into: dict[str, str]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}.", into)
        else:
            into[f"{prefix}{key}"] = str(value)
