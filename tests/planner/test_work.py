"""Steps and tokens of a job, against sums worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.domain.estimate import Range
from loracle.domain.plan import DataFacts
from loracle.domain.recipe import Recipe
from loracle.planner.work import cut_share_at, given_tokens, workload

DATA = DataFacts(
    num_samples=1000,
    tokens=Range.exact(400_000),
    tokens_kept=Range.exact(380_000),
    counted_by="tokenizer",
    length_percentiles={50: 300, 90: 900, 95: 1000, 99: 1500, 100: 3000},
    padding_share=0.5,
    packed_sequences=200,
)


def recipe(**training):
    return Recipe.model_validate({"model": "m", "training": {"seq_len": 2048, **training}})


def test_packed():
    work = workload(recipe(epochs=3, effective_batch=16), DATA, packing=True)
    assert work.num_steps == 39  # ceil(200 / 16) = 13 steps an epoch
    assert work.tokens.likely == 39 * 16 * 2048
    assert (work.peak_len, work.mean_len) == (2048, 2048)


def test_padding_grows_with_the_rows_of_a_micro_batch():
    """Exponential lengths of mean 100: the longest of n has the mean 100 x (1 + 1/2 ... + 1/n)."""
    harmonic = {rows: sum(1 / one for one in range(1, rows + 1)) for rows in (1, 2, 4, 8, 16)}
    data = DataFacts(
        num_samples=1000, tokens=Range.exact(100_000), counted_by="tokenizer",
        length_percentiles={100: 2000}, padding_share=1 - 1 / harmonic[8],
    )  # fmt: skip
    work = workload(recipe(), data, packing=False)
    assert (work.padded_to(1), work.padded_to(8), work.mean_len) == (100, 272, 272)
    for rows, times in harmonic.items():
        assert work.padded_to(rows) == pytest.approx(100 * times, rel=0.05)
    packed = workload(recipe(), data, packing=True)
    assert {packed.padded_to(rows) for rows in harmonic} == {2048}


@given(st.integers(1, 10**7), st.integers(1, 10**5))
def test_an_exact_count_stays_exact(tokens, packed):
    """Seen on a card: 372 packed sequences became 372.00000000000006 at both ends."""
    data = DataFacts(
        num_samples=1,
        tokens=Range.exact(tokens),
        tokens_kept=Range.exact(tokens),
        counted_by="tokenizer",
        packed_sequences=packed,
    )
    work = workload(recipe(epochs=1, effective_batch=1), data, packing=True)
    assert (work.steps.low, work.steps.high) == (packed, packed)


def test_not_packed():
    """1,000 samples of 380 tokens on average, half of what passes through is padding."""
    work = workload(recipe(epochs=1, effective_batch=16), DATA, packing=False)
    assert work.num_steps == 63
    assert (work.peak_len, work.mean_len) == (2048, 760)


def test_short_samples_never_reach_the_sequence_length():
    work = workload(recipe(seq_len=8192), DATA, packing=False)
    assert work.peak_len == 3000


def test_steps_of_the_recipe_win():
    work = workload(recipe(steps=100, effective_batch=10), DATA, packing=True)
    assert (work.num_steps, work.epochs) == (100, 5.0)


def test_a_guess_of_tokens_gives_a_range_of_steps():
    data = DataFacts(num_samples=10, tokens=Range(100_000, 200_000, 400_000), counted_by="bytes")
    work = workload(recipe(epochs=1, effective_batch=1), data, packing=True)
    assert (work.steps.low, work.steps.likely, work.steps.high) == (49, 98, 196)


def test_tokens_alone():
    work = workload(recipe(epochs=2, effective_batch=8), given_tokens(1_000_000), packing=True)
    assert work.num_steps == 124  # ceil(1e6 / 2048) = 489, ceil(489 / 8) = 62, twice


@pytest.mark.parametrize(
    ("seq_len", "share"), [(3000, 0.0), (4096, 0.0), (1500, 0.01), (600, 0.3), (100, 0.5)]
)
def test_cut_share_between_percentiles(seq_len, share):
    assert cut_share_at(DATA, seq_len) == pytest.approx(share)


@given(st.integers(1, 10**9), st.integers(1, 8192), st.integers(1, 512), st.floats(0.01, 20))
def test_more_tokens_are_never_fewer_steps(tokens, seq_len, batch, epochs):
    asked = recipe(seq_len=seq_len, effective_batch=batch, epochs=epochs)
    less = workload(asked, given_tokens(tokens), packing=True)
    more = workload(asked, given_tokens(tokens * 2), packing=True)
    assert 1 <= less.num_steps <= more.num_steps
