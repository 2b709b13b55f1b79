"""Base and adapter answer the same message, from one loaded model."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loracle.catalog.datasets import Sample, Turn
from loracle.errors import InputError
from loracle.jobs.evaluate.answers import Item, generate
from loracle.jobs.evaluate.evaluate import generation_stops
from loracle.jobs.evaluate.subjects import (
    Loaded,
    Subject,
    choose_device,
    compute_dtype,
    loaded,
    short_memory,
)
from loracle.jobs.evaluate.targets import Target, subjects_of
from loracle.jobs.train.model import load_tokenizer, special_tokens
from loracle.jobs.train.templates import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class Conversation:
    """Both models loaded once, each with its own memory of the talk."""

    holder: Loaded
    subjects: list[Subject]
    tokenizer: "PreTrainedTokenizerBase"
    stop_ids: list[int]
    pad_id: int
    system: str | None
    turns: dict[str, list[Turn]]

    def reset(self) -> None:
        """Forget all turns but the system message."""
        start = [Turn("system", self.system)] if self.system else []
        self.turns = {one.id: list(start) for one in self.subjects}

    def say(self, message: str, *, max_new_tokens: int) -> Iterator[tuple[str, str]]:
        """(subject id, answer) of each model, and remember both."""
        for subject in self.subjects:
            turns = self.turns[subject.id]
            turns.append(Turn("user", message))
            sample = Sample(kind="messages", row=1, messages=(*turns, Turn("assistant", "")))
            item = Item(1, tuple(encode_prompt(self.tokenizer, sample)), (), (), message, None)
            with _short_memory(), self.holder.use(subject) as model:
                (answer,) = generate(
                    model, [item], self.stop_ids, self.pad_id, max_new_tokens, self.tokenizer
                )
            turns.append(Turn("assistant", answer[0]))
            yield subject.id, answer[0]


@contextmanager
def conversation(target: Target, *, system: str | None = None) -> Iterator[Conversation]:
    """Load base and adapter of a target; raises InputError E013 without an adapter."""
    device = choose_device()
    if target.adapter is None:
        raise InputError("error.evaluate.nothing_to_compare", code="E013", path=target.base)
    subjects = subjects_of(target, dtype=compute_dtype(device, target.dtype), merged=[])
    tokenizer: Any = load_tokenizer(target.tokenizer or target.base)
    special = special_tokens(tokenizer, generation_stops(subjects))
    with ExitStack() as stack:
        with _short_memory():
            holder = stack.enter_context(loaded(subjects, device))
        talk = Conversation(
            holder, subjects, tokenizer, sorted(special.stop_ids), special.pad_token_id,
            system, {},
        )  # fmt: skip
        talk.reset()
        yield talk


def _short_memory() -> AbstractContextManager[None]:
    return short_memory("error.evaluate.chat_memory", hint="hint.evaluate.chat_memory")
