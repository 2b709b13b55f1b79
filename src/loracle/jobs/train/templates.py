"""From a sample to token ids and labels, exactly as the model will be asked later.

The chat template renders, and only then the text is tokenised, so special tokens are placed once.
What carries a loss is found by rendering, because most stock templates have no generation marks
(and give an all-zero mask without a word): a turn of the assistant is what the full text holds
beyond the text rendered up to it. Templates that rewrite earlier turns (Qwen3 drops their
thinking) are searched for each turn's content instead.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loracle.catalog.datasets import Sample
from loracle.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
PROMPTS_HASHED = 16
_SENTINEL = "\u2063loracle\u2063"


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sample in tokens; a label is IGNORED or the token itself."""

    input_ids: list[int]
    labels: list[int]

    def cut(self, seq_len: int) -> "Encoded":
        """The first `seq_len` tokens."""
        return Encoded(self.input_ids[:seq_len], self.labels[:seq_len])

    @property
    def num_labels(self) -> int:
        """Tokens that carry a loss (the first token of a sequence is predicted by nothing)."""
        return sum(label != IGNORED for label in self.labels[1:])

    @property
    def last_label(self) -> int | None:
        """The last token that carries a loss."""
        return next((label for label in reversed(self.labels) if label != IGNORED), None)


def encode(tokenizer: "PreTrainedTokenizerBase", sample: Sample, train_on: str = "auto") -> Encoded:
    """Tokens and labels of a whole sample.

    `train_on`: assistant, completion, everything, or auto (everything for text). Raises DataError
    E026 where the template refuses a row or its turns cannot be found in what it renders.
    """
    if sample.kind == "messages" and tokenizer.chat_template:
        return _encode_chat(tokenizer, sample, train_on)
    return _encode_plain(tokenizer, sample, train_on)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", sample: Sample) -> list[int]:
    """Tokens up to where the model's last answer starts: what generation begins from."""
    if sample.kind == "messages" and tokenizer.chat_template:
        text = _render(tokenizer, sample, len(sample.messages) - 1, prompt=True)
        return _tokenise(tokenizer, text)
    return _plain_ids(tokenizer, _prompt_text(sample))


def prompts_hash(tokenizer: "PreTrainedTokenizerBase", samples: Sequence[Sample]) -> str:
    """SHA-256 of the first prompts in tokens: equal where two renderings ask the same."""
    digest = hashlib.sha256()
    for sample in samples[:PROMPTS_HASHED]:
        digest.update(repr(encode_prompt(tokenizer, sample)).encode())
    return digest.hexdigest()


def stop_token_ids(tokenizer: "PreTrainedTokenizerBase", generation_eos: object) -> set[int]:
    """Tokens that end an answer: the tokenizer's and those of the generation config."""
    more = generation_eos if isinstance(generation_eos, list | tuple) else [generation_eos]
    return {int(one) for one in (tokenizer.eos_token_id, *more) if one is not None}


def _encode_chat(tokenizer: "PreTrainedTokenizerBase", sample: Sample, train_on: str) -> Encoded:
    full = _render(tokenizer, sample, len(sample.messages))
    lead = _missing_bos(tokenizer, full)
    tokens = tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(tokens["input_ids"])
    if train_on == "everything":
        return Encoded(lead + ids, [IGNORED] * len(lead) + ids)
    spans = [
        _span(tokenizer, sample, index, full)
        for index, turn in enumerate(sample.messages)
        if turn.role == "assistant"
    ]
    labels = [
        token if any(start <= begin and end <= stop for start, stop in spans) else IGNORED
        for token, (begin, end) in zip(ids, tokens["offset_mapping"], strict=True)
    ]
    return Encoded(lead + ids, [IGNORED] * len(lead) + labels)


def _span(
    tokenizer: "PreTrainedTokenizerBase", sample: Sample, index: int, full: str
) -> tuple[int, int]:
    """Characters of `full` that the assistant writes in turn `index`, its end mark included."""
    before = _render(tokenizer, sample, index, prompt=True)
    after = _render(tokenizer, sample, index + 1)
    if full.startswith(before) and full.startswith(after) and len(before) < len(after):
        return len(before), _end_of_turn(tokenizer, full, len(before), len(after))
    content = sample.messages[index].content.strip()
    marked = _render(tokenizer, sample, len(sample.messages), replaced=(index, _SENTINEL))
    start = marked.find(_SENTINEL)
    if start < 0 or not content or not full.startswith(content, start):
        raise DataError(
            "error.train.mask", code="E026", hint="hint.train.mask", row=sample.row,
            file=sample.file, turn=index,
        )  # fmt: skip
    stop = start + len(content)
    tail = full[stop:]
    end_mark = next((mark for mark in _marks(tokenizer) if tail.startswith(mark)), "")
    return start, stop + len(end_mark)


def _end_of_turn(tokenizer: "PreTrainedTokenizerBase", full: str, start: int, stop: int) -> int:
    """Where the turn ends: after its end mark, without the newline that some templates add."""
    trimmed = full[start:stop].rstrip()
    if any(trimmed.endswith(mark) for mark in _marks(tokenizer)):
        return start + len(trimmed)
    return stop


def _marks(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Texts of the special tokens, longest first."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    named = [str(tokenizer.eos_token)] if tokenizer.eos_token else []
    return sorted({*added, *named}, key=len, reverse=True)


def _render(
    tokenizer: "PreTrainedTokenizerBase",
    sample: Sample,
    turns: int,
    *,
    prompt: bool = False,
    replaced: tuple[int, str] | None = None,
) -> str:
    """The template's text of the first `turns` turns, with or without the answer's opening."""
    from jinja2 import TemplateError

    messages = [turn.as_message() for turn in sample.messages[:turns]]
    if replaced is not None:
        messages[replaced[0]] = messages[replaced[0]] | {"content": replaced[1]}
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=[dict(tool) for tool in sample.tools] or None,
            tokenize=False,
            add_generation_prompt=prompt,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            "error.train.template", code="E026", row=sample.row, file=sample.file,
            cause=str(error),
        ) from error  # fmt: skip
    return str(text)


def _tokenise(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return _missing_bos(tokenizer, text) + list(ids)


def _missing_bos(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """The beginning token, where the model expects one and the template does not write it."""
    bos = tokenizer.bos_token
    if bos is None or text.startswith(bos):
        return []
    adds_bos = tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]
    return [tokenizer.bos_token_id] if adds_bos else []


def _encode_plain(tokenizer: "PreTrainedTokenizerBase", sample: Sample, train_on: str) -> Encoded:
    """Prompt and completion are tokenised apart, as they meet at generation; eos ends both."""
    prompt = _plain_ids(tokenizer, _prompt_text(sample))
    answer = list(tokenizer(_answer_text(sample), add_special_tokens=False)["input_ids"])
    if tokenizer.eos_token_id is not None:
        answer.append(tokenizer.eos_token_id)
    learn_all = train_on == "everything" or sample.kind == "text"
    return Encoded(prompt + answer, (prompt if learn_all else [IGNORED] * len(prompt)) + answer)


def _plain_ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Ids with the tokenizer's own beginning, and without an ending that it may add."""
    ids = list(tokenizer(text)["input_ids"])
    if ids and text and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    return ids


def _prompt_text(sample: Sample) -> str:
    if sample.kind == "messages":
        return "".join(f"{turn.content}\n" for turn in sample.messages[:-1])
    return sample.prompt if sample.kind == "prompt-completion" else ""


def _answer_text(sample: Sample) -> str:
    return sample.text if sample.kind == "text" else (sample.answer or "")
