"""What a row means: alpaca, ShareGPT, messages, prompt and completion, or plain text.

Each reader turns a row into the fields of a `Sample` or says why it cannot. Roles are mapped to
the four that chat templates know; a role that is not in the table is an error, because a template
that is handed `human` renders it as it is and the model learns a role that no server will send.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loracle.catalog.datasets.jsontext import JsonFault, parse_json
from loracle.catalog.datasets.samples import Turn

FORMATS = ("messages", "sharegpt", "alpaca", "prompt-completion", "text")

_ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bard": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "model": "assistant", "function_call": "assistant",
    "tool": "tool", "observation": "tool", "function": "tool", "function_response": "tool",
}  # fmt: skip
_QUESTION_ANSWER = (
    ("instruction", "output"), ("instruction", "response"), ("instruction", "completion"),
    ("query", "response"), ("question", "answer"), ("input", "output"),
)  # fmt: skip
_CONTINUATION = (("prompt", "completion"), ("prompt", "response"))
_TEXT_KEYS = ("text", "content")
_CHAT_KEYS = {"messages": ("messages",), "sharegpt": ("conversations", "conversation")}
_EXTRA_KEYS = ("system", "history", "tools", "input")

Fields = dict[str, Any]


class BadRow(ValueError):
    """Why a row is no sample: a reason id, the key at fault, and a detail."""

    def __init__(self, reason: str, key: str = "", detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.key, self.detail = reason, key, detail


def detect_format(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """The format that most of the rows have the keys of; None where no row has any."""
    votes = dict.fromkeys(FORMATS, 0)
    for row in rows:
        for name in FORMATS:
            if _fits(row, name):
                votes[name] += 1
                break
    best = max(votes, key=lambda name: votes[name])
    return best if votes[best] else None


def read_row(row: Mapping[str, Any], format_name: str) -> Fields:
    """The `kind` and content fields of a `Sample`; raises BadRow."""
    return _READERS[format_name](row)


def used_keys(format_name: str) -> frozenset[str]:
    """Keys that a format looks at; others are reported as unused."""
    if format_name in _CHAT_KEYS:
        return frozenset((*_CHAT_KEYS[format_name], *_CHAT_KEYS["sharegpt"], "system", "tools"))
    if format_name == "text":
        return frozenset(_TEXT_KEYS)
    pairs = _QUESTION_ANSWER if format_name == "alpaca" else _CONTINUATION
    return frozenset(key for pair in pairs for key in pair) | frozenset(_EXTRA_KEYS)


def _fits(row: Mapping[str, Any], format_name: str) -> bool:
    if format_name in _CHAT_KEYS:
        return any(key in row for key in _CHAT_KEYS[format_name])
    if format_name == "text":
        return any(key in row for key in _TEXT_KEYS)
    pairs = _QUESTION_ANSWER if format_name == "alpaca" else _CONTINUATION
    return any(question in row and answer in row for question, answer in pairs)


def _read_chat(row: Mapping[str, Any]) -> Fields:
    key = next((key for keys in _CHAT_KEYS.values() for key in keys if key in row), None)
    if key is None:
        raise BadRow("missing_key", "messages")
    turns = _turns(row[key], key)
    system = row.get("system")
    if system and turns[0].role != "system":
        turns.insert(0, Turn("system", _text(system, "system")))
    _check_order(turns, key)
    return {"kind": "messages", "messages": tuple(turns), "tools": _tools(row.get("tools"))}


def _turns(value: Any, key: str) -> list[Turn]:
    entries = _from_json(value, key)
    if entries is None:
        raise BadRow("null_value", key)
    if not isinstance(entries, list):
        raise BadRow("not_a_list", key)
    if not entries:
        raise BadRow("no_turns", key)
    return [_turn(entry, f"{key}[{index}]") for index, entry in enumerate(entries)]


def _turn(entry: Any, key: str) -> Turn:
    if not isinstance(entry, Mapping):
        raise BadRow("not_a_turn", key)
    role_key = "role" if "role" in entry else "from"
    if role_key not in entry:
        raise BadRow("missing_key", f"{key}.role")
    name = entry[role_key]
    role = _ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise BadRow("unknown_role", f"{key}.{role_key}", str(name))
    text_key = "content" if "content" in entry else "value"
    calls = tuple(entry.get("tool_calls") or ())
    if text_key not in entry and not calls:
        raise BadRow("missing_key", f"{key}.content")
    content = entry.get(text_key)
    if content is None and calls:
        return Turn(role, "", calls)
    return Turn(role, _text(content, f"{key}.{text_key}"), calls)


def _check_order(turns: Sequence[Turn], key: str) -> None:
    """System first if at all, a user before the assistant, no one twice, an answer at the end."""
    if not any(turn.role == "assistant" for turn in turns):
        raise BadRow("no_assistant_turn", key)
    before = "start"
    for index, turn in enumerate(turns):
        if before not in _MAY_FOLLOW[turn.role]:
            raise BadRow("turn_order", f"{key}[{index}]", f"{before}, {turn.role}")
        if turn.role == "user" and not turn.content.strip():
            raise BadRow("empty_prompt", f"{key}[{index}]")
        if turn.role == "assistant" and not turn.content.strip() and not turn.tool_calls:
            raise BadRow("empty_output", f"{key}[{index}]")
        before = turn.role
    if before != "assistant":
        raise BadRow("last_turn", f"{key}[{len(turns) - 1}]", before)


_MAY_FOLLOW = {
    "system": ("start",),
    "user": ("start", "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    tools = _from_json(value, "tools") if value else None
    if not tools:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("not_a_list", "tools")
    return tuple(tools)


def _read_alpaca(row: Mapping[str, Any]) -> Fields:
    question_key, answer_key = _pair(row, _QUESTION_ANSWER)
    question = _text(row[question_key], question_key)
    if question_key != "input" and row.get("input"):
        question += "\n" + _text(row["input"], "input")
    if not question.strip():
        raise BadRow("empty_prompt", question_key)
    turns = [Turn("system", _text(row["system"], "system"))] if row.get("system") else []
    for pair in _from_json(row.get("history"), "history") or ():
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise BadRow("not_a_turn", "history")
        turns.append(Turn("user", _text(pair[0], "history")))
        turns.append(Turn("assistant", _text(pair[1], "history")))
    answer = _output(row[answer_key], answer_key)
    turns += [Turn("user", question), Turn("assistant", answer)]
    return {"kind": "messages", "messages": tuple(turns)}


def _read_continuation(row: Mapping[str, Any]) -> Fields:
    prompt_key, completion_key = _pair(row, _CONTINUATION)
    prompt, completion = row[prompt_key], row[completion_key]
    if isinstance(prompt, list) and isinstance(completion, list):
        turns = _turns(prompt, prompt_key) + _turns(completion, completion_key)
        _check_order(turns, completion_key)
        return {"kind": "messages", "messages": tuple(turns), "tools": _tools(row.get("tools"))}
    return {
        "kind": "prompt-completion",
        "prompt": _text(prompt, prompt_key),
        "completion": _output(completion, completion_key),
    }


def _read_text(row: Mapping[str, Any]) -> Fields:
    key = next((key for key in _TEXT_KEYS if key in row), None)
    if key is None:
        raise BadRow("missing_key", "text")
    text = _text(row[key], key)
    if not text.strip():
        raise BadRow("empty_text", key)
    return {"kind": "text", "text": text}


def _pair(row: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    for question, answer in pairs:
        if question in row and answer in row:
            return question, answer
    for question, answer in pairs:
        if question in row:
            raise BadRow("missing_key", answer)
    for question, answer in pairs:
        if answer in row:
            raise BadRow("missing_key", question)
    raise BadRow("missing_key", pairs[0][0])


def _output(value: Any, key: str) -> str:
    text = _text(value, key)
    if not text.strip():
        raise BadRow("empty_output", key)
    return text


def _text(value: Any, key: str) -> str:
    """A string, or content parts that are all text, joined; anything else is refused by name."""
    if isinstance(value, str):
        return value
    if value is None:
        raise BadRow("null_value", key)
    if isinstance(value, list):
        return "".join(_part(part, key) for part in value)
    raise BadRow("not_text", key, type(value).__name__)


def _part(part: Any, key: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        kind = part.get("type", "text")
        if kind in ("text", "input_text", "output_text"):
            return str(part["text"])
        raise BadRow("non_text_part", key, str(kind))
    detail = part.get("type", "?") if isinstance(part, Mapping) else type(part).__name__
    raise BadRow("non_text_part", key, str(detail))


def _from_json(value: Any, key: str) -> Any:
    """CSV and some Parquet files hold lists as JSON text."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except JsonFault as fault:
        raise BadRow("not_a_list", key, json.dumps(value[:40], ensure_ascii=False)) from fault


_READERS: dict[str, Callable[[Mapping[str, Any]], Fields]] = {
    "messages": _read_chat,
    "sharegpt": _read_chat,
    "alpaca": _read_alpaca,
    "prompt-completion": _read_continuation,
    "text": _read_text,
}
