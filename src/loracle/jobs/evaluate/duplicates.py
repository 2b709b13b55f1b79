"""Held-out rows that the training set holds too: they test memory, not skill."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loracle.catalog.datasets import Sample
from loracle.jobs.evaluate.metrics import normalised


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows (numbers in the held-out set) whose question, or question and answer, was trained on.

    `inside` are repetitions within the held-out set, which count one answer twice.
    """

    same_question: tuple[int, ...]
    same_row: tuple[int, ...]
    inside: tuple[int, ...]


def find_duplicates(train: Iterable[Sample], held_out: Sequence[Sample]) -> Duplicates:
    """Compare by normalised text (case, punctuation and space do not count)."""
    questions, rows = set(), set()
    for sample in train:
        question, row = _keys(sample)
        questions.add(question)
        rows.add(row)
    same_question, same_row, inside = [], [], []
    seen: set[bytes] = set()
    for sample in held_out:
        question, row = _keys(sample)
        if row in rows:
            same_row.append(sample.row)
        elif question in questions and sample.kind != "text":
            same_question.append(sample.row)
        if row in seen:
            inside.append(sample.row)
        seen.add(row)
    return Duplicates(tuple(same_question), tuple(same_row), tuple(inside))


def _keys(sample: Sample) -> tuple[bytes, bytes]:
    """Digests of all that comes before the answer, and of the whole."""
    if sample.kind == "messages":
        before = "\n".join(turn.content for turn in sample.messages[:-1])
    else:
        before = sample.question
    answer = sample.answer or ""
    return _digest(before), _digest(f"{before}\n{answer}")


def _digest(text: str) -> bytes:
    return hashlib.blake2b((normalised(text) or text).encode(), digest_size=16).digest()
