"""Scores of an answer against a reference: exact match, F1, ROUGE-L, the right label.

Texts are compared after Unicode normalisation, in lower case, without punctuation and doubled
space. Tokens are words, and single characters for Chinese, Japanese and Korean, which put no
space between words.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from statistics import median

METRICS = ("exact", "f1", "rouge-l", "accuracy")
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+", re.UNICODE)
_SHORT_TOKENS, _MOST_LABELS, _ITEMS_PER_LABEL = 12, 20, 5


def normalised(text: str) -> str:
    """The text as it is compared."""
    return " ".join(tokens(text))


def tokens(text: str) -> list[str]:
    """Words, and single characters of scripts without spaces."""
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def exact(answer: str, reference: str) -> float:
    """1 where the normalised texts are the same; texts of punctuation only compare as they are."""
    ours, theirs = normalised(answer), normalised(reference)
    return float(ours == theirs if theirs else answer.strip() == reference.strip())


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall over tokens, as SQuAD counts them."""
    ours, theirs = tokens(answer), tokens(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


def rouge_l(answer: str, reference: str) -> float:
    """F-measure of the longest common subsequence of tokens (Lin 2004, beta 1)."""
    ours, theirs = tokens(answer), tokens(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * _longest_common(ours, theirs) / (len(ours) + len(theirs))


def label_of(answer: str, labels: Sequence[str]) -> str | None:
    """The label that an answer gives: the one it starts with, else the only one it names."""
    text = f" {normalised(answer)} "
    found = sorted(labels, key=lambda label: (-len(normalised(label)), label))
    for label in found:
        if text.startswith(f" {normalised(label)} "):
            return label
    named = [label for label in found if f" {normalised(label)} " in text]
    return named[0] if len(named) == 1 else None


def score(metric: str, answer: str, reference: str, labels: Sequence[str] = ()) -> float:
    """One metric of one answer, from 0 to 1."""
    if metric == "accuracy":
        given = label_of(answer, labels)
        return float(given is not None and normalised(given) == normalised(reference))
    return {"exact": exact, "f1": f1, "rouge-l": rouge_l}[metric](answer, reference)


def choose_metrics(references: Sequence[str]) -> tuple[str, ...]:
    """What a set asks for; the first one decides.

    Few different short answers, each seen often: accuracy. Short answers: exact match, with F1.
    Long answers: ROUGE-L. No answers (plain text): none, the loss decides.
    """
    if not references:
        return ()
    labels = {normalised(one) for one in references}
    length = median(len(tokens(one)) for one in references)
    few = len(labels) <= _MOST_LABELS and len(references) >= _ITEMS_PER_LABEL * len(labels)
    if few and length <= _SHORT_TOKENS and len(labels) > 1:
        return ("accuracy", "exact")
    return ("exact", "f1") if length <= _SHORT_TOKENS else ("rouge-l",)


def is_right_wrong(metric: str) -> bool:
    """Whether a metric only knows right and wrong."""
    return metric in ("exact", "accuracy")


def _longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence, in one row of memory."""
    row = [0] * (len(right) + 1)
    for item in left:
        diagonal = 0
        for index, other in enumerate(right, 1):
            above = row[index]
            row[index] = diagonal + 1 if item == other else max(above, row[index - 1])
            diagonal = above
    return row[-1]
