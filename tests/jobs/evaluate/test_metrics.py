"""Scores worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.catalog.datasets import Sample, Turn
from loracle.jobs.evaluate.duplicates import find_duplicates
from loracle.jobs.evaluate.metrics import (
    choose_metrics,
    exact,
    f1,
    label_of,
    rouge_l,
    score,
    tokens,
)


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Paris.", "paris", 1),
        (" The  answer ", "the answer", 1),
        ("１２", "12", 1),  # full-width digits
        ("Paris", "London", 0),
        ("+", "-", 0),  # nothing but punctuation is compared as it is
        ("-", "-", 1),
        ("", "x", 0),
    ],
)
def test_exact(answer, reference, expected):
    assert exact(answer, reference) == expected


def test_f1_by_hand():
    assert f1("the cat sat", "the cat slept here") == pytest.approx(2 * 2 / (3 + 4))
    assert f1("a a b", "a b b") == pytest.approx(2 * 2 / 6)
    assert f1("", "a") == 0
    assert f1("我爱北京", "我爱上海") == pytest.approx(2 * 2 / 8)


def test_rouge_l_by_hand():
    """Lin 2004: "police killed the gunman" against "police kill the gunman": LCS 3 of 4."""
    assert rouge_l("police kill the gunman", "police killed the gunman") == pytest.approx(3 / 4)
    assert rouge_l("the gunman kill police", "police killed the gunman") == pytest.approx(2 / 4)
    assert rouge_l("a b c d", "a x b y c") == pytest.approx(2 * 3 / 9)


@given(st.text(max_size=30), st.text(max_size=30))
def test_scores_are_shares_and_symmetric_where_they_should_be(left, right):
    for metric in (exact, f1, rouge_l):
        assert 0 <= metric(left, right) <= 1
        assert metric(left, left) == 1
    assert f1(left, right) == pytest.approx(f1(right, left))
    assert rouge_l(left, right) == pytest.approx(rouge_l(right, left))


def test_labels():
    labels = ["positive", "negative", "very negative"]
    assert label_of("Positive", labels) == "positive"
    assert label_of("very negative, because ...", labels) == "very negative"
    assert label_of("I think it is negative.", labels) == "negative"
    assert label_of("positive or negative", labels) == "positive"
    assert label_of("neither, positive nor negative", labels) is None
    assert score("accuracy", "It is negative", "negative", labels) == 1


def test_choice_of_metrics():
    assert choose_metrics(["yes", "no"] * 20) == ("accuracy", "exact")
    assert choose_metrics([f"ticket {n}" for n in range(40)]) == ("exact", "f1")
    assert choose_metrics([" ".join(["word"] * 30) + str(n) for n in range(9)]) == ("rouge-l",)
    assert choose_metrics([]) == ()


def test_tokens_split_chinese_by_character():
    assert tokens("Qwen3 模型, v2!") == ["qwen3", "模", "型", "v2"]


def chat(row, question, answer):
    turns = (Turn("user", question), Turn("assistant", answer))
    return Sample(kind="messages", row=row, messages=turns)


def test_duplicates():
    train = [chat(1, "What is 1 + 1?", "2"), chat(2, "Capital of France?", "Paris")]
    held_out = [
        chat(1, "what is 1+1", "2"),  # case, space and punctuation do not count
        chat(2, "Capital of France?", "Lyon"),
        chat(3, "Capital of Spain?", "Madrid"),
        chat(4, "Capital of Spain?", "Madrid"),
    ]
    found = find_duplicates(train, held_out)
    assert (found.same_row, found.same_question, found.inside) == ((1,), (2,), (4,))
