"""How many tokens a sample has: by the model's own tokenizer, or from its characters.

Without a tokenizer the count rests on nine features of the text (words, letters, digits, Chinese
characters ...) and on what six real tokenizers make of them. English differs little between
tokenizers; Chinese takes 0.6 tokens a character with Qwen's and 1.8 with SmolLM2's, so the range
is as wide as the tokenizers of the model's vocabulary size are apart.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from loracle.catalog.datasets.chat_template import ChatTemplate, load_chat_template, special_tokens
from loracle.catalog.datasets.samples import Sample
from loracle.domain.estimate import Range
from loracle.errors import DataError, RunError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RESIDUAL = 0.13  # left out of the fit, prose, code and Chinese are off by 8 %, JSON by 13 %
_TURN_TOKENS = Range(3, 5, 8)  # a turn's markers, over the chat templates of the catalog
_SAMPLE_TOKENS = Range(1, 1, 2)  # end of text, and a beginning where a model has one
_SAME_VOCABULARY = 0.005  # families keep their vocabulary size to the padding
_SMALL_VOCABULARY = 80_000


class TokenCounter(Protocol):
    """Counts tokens of samples, rendered as they are trained on."""

    @property
    def counted_by(self) -> str:
        """`tokenizer` or `bytes`, as `DataFacts` has it."""
        ...

    def count(self, samples: Sequence[Sample]) -> list[Range]:
        """Tokens of each sample, whole (nothing cut)."""
        ...

    def count_prompt(self, sample: Sample) -> float:
        """Likely tokens before the first that carries a loss."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerCounter:
    """Exact counts by a `tokenizer.json`, with the chat template where the model has one."""

    tokenizer: "Tokenizer"
    template: ChatTemplate | None
    adds_eos: bool = True
    counted_by: str = "tokenizer"

    @classmethod
    def from_folder(cls, folder: Path) -> "TokenizerCounter":
        """From a model's folder that holds `tokenizer.json`.

        Raises:
            ImportError: without the `tokenizers` library.
            DataError: E026, a tokenizer file that cannot be read.
        """
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise DataError(
                "error.data.tokenizer", code="E026", path=str(folder), cause=str(error)
            ) from error
        return cls(tokenizer, load_chat_template(folder), "eos_token" in special_tokens(folder))

    def count(self, samples: Sequence[Sample]) -> list[Range]:
        """Exact tokens of each sample; templates place their own special tokens."""
        chat = [index for index, one in enumerate(samples) if self._is_templated(one)]
        plain = [index for index, one in enumerate(samples) if not self._is_templated(one)]
        counts = [0] * len(samples)
        rendered = self._lengths((self._render(samples[i]) for i in chat), False)
        for index, length in zip(chat, rendered, strict=True):
            counts[index] = length
        plain_texts = self._lengths((samples[i].characters for i in plain), True)
        for index, length in zip(plain, plain_texts, strict=True):
            counts[index] = length + int(self.adds_eos)
        return [Range.exact(length) for length in counts]

    def count_prompt(self, sample: Sample) -> float:
        """Exact tokens before the first assistant turn or the completion; 0 for text."""
        if sample.kind == "text":
            return 0
        if self._is_templated(sample) and self.template is not None:
            first = next(i for i, turn in enumerate(sample.messages) if turn.role == "assistant")
            text = self.template.render(
                [turn.as_message() for turn in sample.messages[:first]],
                tools=sample.tools,
                add_generation_prompt=True,
            )
            return self._lengths([text], False)[0]
        return self._lengths([_plain_prompt(sample)], True)[0]

    def _is_templated(self, sample: Sample) -> bool:
        return sample.kind == "messages" and self.template is not None

    def _render(self, sample: Sample) -> str:
        assert self.template is not None
        try:
            messages = [turn.as_message() for turn in sample.messages]
            return self.template.render(messages, tools=sample.tools)
        except RunError as error:
            raise DataError(
                "error.data.template_row",
                code="E026",
                file=sample.file,
                row=sample.row,
                cause=error.values.get("cause"),
            ) from error

    def _lengths(self, texts: Iterable[str], add_special_tokens: bool) -> list[int]:
        encodings = self.tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [len(encoding) for encoding in encodings]


@dataclass(frozen=True, slots=True)
class CharacterCounter:
    """Counts from characters, for a model whose tokenizer is not at hand."""

    vocab_size: int | None = None
    counted_by: str = "bytes"

    def count(self, samples: Sequence[Sample]) -> list[Range]:
        """A range for each sample, markers of a chat template included."""
        low, likely, high = _rates(self.vocab_size)
        counts = []
        for sample in samples:
            features = text_features(sample.characters)
            turns = len(sample.messages)
            counts.append(
                Range(
                    _dot(features, low) * (1 - RESIDUAL) + turns * _TURN_TOKENS.low,
                    _dot(features, likely) + turns * _TURN_TOKENS.likely,
                    _dot(features, high) * (1 + RESIDUAL) + turns * _TURN_TOKENS.high,
                ).plus(_SAMPLE_TOKENS)
            )
        return counts

    def count_prompt(self, sample: Sample) -> float:
        """Likely tokens of the prompt."""
        if sample.kind == "text":
            return 0
        likely = _rates(self.vocab_size)[1]
        turns = sum(turn.role != "assistant" for turn in sample.messages)
        return _dot(text_features(_plain_prompt(sample)), likely) + turns * _TURN_TOKENS.likely


def find_counter(model: str | Path | None, *, vocab_size: int | None = None) -> TokenCounter:
    """The best counter at hand: a tokenizer in a folder or in the hub's cache, else characters.

    Nothing is downloaded. Without the `tokenizers` library, characters are counted.
    """
    folder = tokenizer_folder(model) if model is not None else None
    if folder is not None:
        try:
            return TokenizerCounter.from_folder(folder)
        except ImportError:
            pass  # the extra is optional: the wider range says that it was missing
    return CharacterCounter(vocab_size)


def tokenizer_folder(model: str | Path) -> Path | None:
    """Where a model's `tokenizer.json` lies on this machine: its folder or the hub's cache."""
    path = Path(model).expanduser()
    folder = path.parent if path.is_file() else path
    if (folder / "tokenizer.json").is_file():
        return folder
    snapshots = _hub_cache() / f"models--{str(model).replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*/tokenizer.json"), key=lambda one: one.stat().st_mtime)
    return found[-1].parent if found else None


def _hub_cache() -> Path:
    """HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub, as huggingface_hub looks for it."""
    import os

    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_CJK_LEADS = bytes(range(0xE3, 0xEE)) + b"\xef"  # first byte of U+3000..U+DFFF and U+F000..
_CLASSES = bytes(
    ord("h") if code > 127
    else ord("a") if code in _LETTERS
    else ord("d") if 48 <= code <= 57
    else ord("n") if code == 10
    else ord("s") if code in b" \t\r"
    else ord("p")
    for code in range(256)
)  # fmt: skip


def text_features(text: str) -> tuple[int, ...]:
    """What a tokenizer sees in a text, in the order of `FEATURES`.

    Runs are counted where they start: `words` of ASCII letters, `punct_runs`, `newlines`,
    `indents` (space after a newline). `cjk` counts characters, `other` bytes of other scripts.
    """
    data = text.encode("utf-8", "surrogatepass")
    classes = b"s" + data.translate(_CLASSES)
    cjk = len(data) - len(data.translate(None, _CJK_LEADS))
    return (
        _runs(classes, b"a"),
        classes.count(b"a"),
        classes.count(b"d"),
        _runs(classes, b"p"),
        classes.count(b"p"),
        _runs(classes, b"n"),
        classes.count(b"ns"),
        cjk,
        max(0, classes.count(b"h") - 3 * cjk),
    )


FEATURES = (
    "words", "letters", "digits", "punct_runs", "punct", "newlines", "indents", "cjk", "other",
)  # fmt: skip


def _runs(classes: bytes, kind: bytes) -> int:
    return sum(classes.count(bytes([before]) + kind) for before in b"adsnph" if before != kind[0])


def _dot(features: Sequence[float], rates: Sequence[float]) -> float:
    return sum(feature * rate for feature, rate in zip(features, rates, strict=True))


def _plain_prompt(sample: Sample) -> str:
    if sample.kind != "messages":
        return sample.prompt
    first = next(i for i, turn in enumerate(sample.messages) if turn.role == "assistant")
    return "\n".join(turn.content for turn in sample.messages[:first])


Rates = tuple[float, ...]


@cache
def _rates(vocab_size: int | None) -> tuple[Rates, Rates, Rates]:
    """Lowest, median and highest tokens per feature over the tokenizers that may be the model's.

    One family where the vocabulary size names it, else all of the same size class.
    """
    tokenizers = _shipped_rates()
    alike = [rates for size, rates in tokenizers if _alike(size, vocab_size)]
    columns = list(zip(*(alike or [rates for _, rates in tokenizers]), strict=True))
    return (
        tuple(min(column) for column in columns),
        tuple(median(column) for column in columns),
        tuple(max(column) for column in columns),
    )


def _alike(size: int, vocab_size: int | None) -> bool:
    if vocab_size is None:
        return True
    sizes = [known for known, _ in _shipped_rates()]
    named = [known for known in sizes if abs(vocab_size / known - 1) < _SAME_VOCABULARY]
    if named:
        return size in named
    return (size < _SMALL_VOCABULARY) == (vocab_size < _SMALL_VOCABULARY)


@cache
def _shipped_rates() -> tuple[tuple[int, Rates], ...]:
    path = Path(__file__).parents[1] / "data" / "tokens_per_character.json"
    document: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    return tuple(
        (int(one["vocab_size"]), tuple(float(one["tokens_per"][name]) for name in FEATURES))
        for one in document["tokenizers"]
    )
