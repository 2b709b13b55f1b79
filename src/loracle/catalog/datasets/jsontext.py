"""JSON as strictly as training needs it: each fault is named, with the column where it lies.

Python's parser lets NaN, duplicate keys and lone surrogates pass; each of them has ruined a run
somewhere. Its messages also differ between Python versions, so faults are told apart by the text
around them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")


class JsonFault(ValueError):
    """What is wrong with a JSON text: a reason id, the character offset, and a detail."""

    def __init__(self, reason: str, position: int, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.position, self.detail = reason, position, detail


def parse_json(text: str) -> Any:
    """The value of a whole JSON text; raises JsonFault."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _classify(text, error) from error
    except _Refused as refused:
        raise _locate(text, refused) from refused
    except RecursionError as error:
        raise JsonFault("too_deep", 0) from error
    if "\\u" in text:
        _refuse_surrogates(value, text)
    return value


def parse_next(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that starts at `start` and where it ends; raises JsonFault."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _classify(text, error) from error
    except _Refused as refused:
        raise _locate(text, refused, start) from refused
    except RecursionError as error:
        raise JsonFault("too_deep", start) from error
    if "\\u" in text[start:end]:
        _refuse_surrogates(value, text, start)
    return value, end


def without_trailing_commas(text: str) -> str:
    """The text without a comma before a closing bracket or at its end, outside strings."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [_TRAILING_COMMA.sub(r"\1", part) for part in parts[::2]]
    return re.sub(r",\s*$", "", "".join(parts))


class _Refused(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused("duplicate_key", twice)
    return found


def _no_constant(name: str) -> Any:
    raise _Refused("nan_literal", name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _locate(text: str, refused: _Refused, start: int = 0) -> JsonFault:
    """Where the refused key or constant stands (the second time, for a key)."""
    if refused.reason == "nan_literal":
        found = re.compile(rf"(?<![\w\"]){re.escape(refused.detail)}(?![\w\"])").search(text, start)
        return JsonFault(refused.reason, found.start() if found else start, refused.detail)
    key = re.compile(re.escape(json.dumps(refused.detail, ensure_ascii=False)) + r"\s*:")
    places = [match.start() for match in key.finditer(text, start)]
    return JsonFault(refused.reason, places[1] if len(places) > 1 else start, refused.detail)


def _classify(text: str, error: json.JSONDecodeError) -> JsonFault:
    position = error.pos
    before = text[:position].rstrip()
    here = text[position : position + 1]
    if error.msg.startswith("Invalid control character"):
        return JsonFault("control_character", position, f"U+{ord(here):04X}")
    if error.msg.startswith("Extra data") and here == "," and not text[position + 1 :].strip():
        return JsonFault("trailing_comma", position)
    if error.msg.startswith("Illegal trailing comma"):  # Python 3.13 points at the comma
        return JsonFault("trailing_comma", position)
    if before.endswith(",") and here in ("}", "]"):
        return JsonFault("trailing_comma", len(before) - 1)
    if here == "'":
        return JsonFault("single_quotes", position)
    if error.msg.startswith("Unterminated string") or not text[position:].strip():
        return JsonFault("truncated", len(text.rstrip()))
    if error.msg.startswith("Extra data"):
        return JsonFault("extra_data", position)
    return JsonFault("syntax", position, here)


def _refuse_surrogates(value: Any, text: str, start: int = 0) -> None:
    """A lone surrogate cannot be written as UTF-8, so no tokenizer takes it."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            if lone := _LONE_SURROGATE.search(one):
                escape = f"\\u{ord(lone[0]):04x}"
                place = text.lower().find(escape, start)
                raise JsonFault("lone_surrogate", max(place, start), escape)
        elif isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list):
            pending += one
