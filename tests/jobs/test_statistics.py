"""Against values worked out by hand or by scipy's own functions, and by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.jobs.intervals import bootstrap_interval, difference_interval, shared_interval
from loracle.jobs.sameness import (
    agreement_interval,
    equivalence,
    equivalence_interval,
    fewest_for_sameness,
)
from loracle.jobs.statistics import (
    Comparison,
    compare_right_wrong,
    compare_scores,
    holm,
    mcnemar_p,
    mcnemar_power,
    sign_flip_p,
    smallest_detectable_right_wrong,
    smallest_detectable_score,
    with_holm,
)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (0, 5, 2 * 0.5**5),  # 0.0625
        (0, 6, 2 * 0.5**6),  # 0.03125
        (1, 7, 2 * (1 + 8) / 2**8),  # P(X <= 1) twice
        (3, 3, 1.0),
        (2, 10, 2 * (1 + 12 + 66) / 2**12),
    ],
)
def test_mcnemar_by_hand(only_a, only_b, p):
    assert mcnemar_p(only_a, only_b) == pytest.approx(p)
    assert mcnemar_p(only_b, only_a) == pytest.approx(p)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.04]) == [0.04]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_never_shrinks(p_values):
    adjusted = holm(p_values)
    assert all(after >= before for after, before in zip(adjusted, p_values, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert [one[1] for one in pairs] == sorted(one[1] for one in pairs)


def test_difference_interval_by_hand():
    """Bonett and Price: n = 98, 9 and 19 discordant: (20 - 10) / 100 -+ 1.96 sqrt(0.29 / 100)."""
    low, high = difference_interval(9, 19, 98)
    width = 1.959964 * ((0.3 - 0.1**2) / 100) ** 0.5
    assert (low, high) == (pytest.approx(0.1 - width), pytest.approx(0.1 + width))


@pytest.mark.parametrize(("num_items", "only_a", "only_b"), [(30, 0.1, 0.3), (80, 0.0, 0.05)])
def test_difference_interval_covers(num_items, only_a, only_b):
    """The true difference lies inside at least 95 % of the time (less 3 standard errors)."""
    generator = np.random.default_rng(4)
    counts = generator.multinomial(num_items, [only_a, only_b, 1 - only_a - only_b], 4000)
    inside = 0
    for a, b, _ in counts:
        low, high = difference_interval(int(a), int(b), num_items)
        inside += low <= only_b - only_a <= high
    assert inside / 4000 >= 0.95 - 3 * (0.05 * 0.95 / 4000) ** 0.5


def test_right_wrong_verdicts():
    a, b = [False] * 20 + [True] * 80, [True] * 100
    found = compare_right_wrong(a, b)
    assert (found.verdict, found.only_a, found.only_b) == ("better", 0, 20)
    assert (found.mean_a, found.mean_b, found.difference) == (0.8, 1.0, pytest.approx(0.2))
    assert found.p == pytest.approx(2 * 0.5**20)
    assert compare_right_wrong(b, a).verdict == "worse"
    assert compare_right_wrong([True] * 5, [False] * 5).verdict == "too_few"
    same = [True] * 300 + [False] * 100
    assert compare_right_wrong(same, same).verdict == "no_evidence"


def test_a_small_noisy_set_is_called_too_few():
    a = [True, False] * 10
    b = [True, True, False, False] * 5
    found = compare_right_wrong(a, b)
    assert found.smallest_detectable > 0.1
    assert found.verdict == "too_few"


def test_sign_flip_is_exact_for_few_pairs():
    assert sign_flip_p(np.array([1.0, 2.0, 3.0]), seed=0) == pytest.approx(2 / 8)
    assert sign_flip_p(np.array([1.0] * 6), seed=0) == pytest.approx(2 * 0.5**6)
    assert sign_flip_p(np.zeros(4), seed=0) == 1.0


def test_sign_flip_against_scipy():
    from scipy.stats import permutation_test

    generator = np.random.default_rng(5)
    differences = generator.normal(0.15, 1, 200)
    reference = permutation_test(
        (differences,), lambda x, axis: x.sum(axis), permutation_type="samples",
        n_resamples=20_000, rng=3,
    ).pvalue  # fmt: skip
    assert sign_flip_p(differences, seed=0) == pytest.approx(reference, abs=0.01)


def test_bootstrap_against_scipy():
    from scipy.stats import bootstrap

    differences = np.random.default_rng(6).exponential(1, 150) - 0.8
    ours = bootstrap_interval(differences, np.ones(150), seed=1)
    theirs = bootstrap(
        (differences,), np.mean, method="percentile", n_resamples=10_000, rng=2
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_bootstrap_is_repeatable():
    differences = np.random.default_rng(6).normal(0, 1, 50)
    once = bootstrap_interval(differences, np.ones(50), seed=4)
    assert bootstrap_interval(differences, np.ones(50), seed=4) == once
    assert bootstrap_interval(differences, np.ones(50), seed=5) != once


def test_clusters_widen_the_interval():
    generator = np.random.default_rng(8)
    shared = np.repeat(generator.normal(0.1, 1, 20), 10)
    a, b = np.zeros(200), shared + generator.normal(0, 0.05, 200)
    alone = compare_scores(a, b)
    together = compare_scores(a, b, clusters=[index // 10 for index in range(200)])
    assert together.high - together.low > 2 * (alone.high - alone.low)
    assert together.p > alone.p
    assert together.difference == alone.difference


def test_holm_changes_the_verdict():
    a = [False] * 7 + [True] * 93
    b = [True] * 7 + [True] * 93
    one = compare_right_wrong(a, b)  # p = 0.0156
    judged = with_holm({"m": one, "n": one, "o": one, "p": one})
    assert one.verdict == "better"
    assert judged["m"].adjusted_p == pytest.approx(4 * 2 * 0.5**7)
    assert judged["m"].verdict == "no_evidence"


@pytest.mark.parametrize(
    ("num_items", "share", "normal"),
    [
        (200, 0.1, 0.061),
        (500, 0.1, 0.039),
        (500, 0.2, 0.056),
        (500, 0.3, 0.068),
        (1000, 0.2, 0.039),
    ],
)
def test_smallest_detectable_is_near_the_normal_approximation(num_items, share, normal):
    """The exact test is conservative: a little more is needed than the table says."""
    found = smallest_detectable_right_wrong(num_items, share)
    assert normal <= found <= normal * 1.16


def test_mcnemar_power_against_enumeration():
    """n = 8, discordant share 0.5, difference 0.4: every outcome summed by hand in Python."""
    from math import comb

    n, share, gap = 8, 0.5, 0.4
    only_b, only_a = (share + gap) / 2, (share - gap) / 2
    power = sum(
        comb(n, i) * comb(n - i, j) * only_b**i * only_a**j * (1 - share) ** (n - i - j)
        for i in range(n + 1)
        for j in range(n + 1 - i)
        if mcnemar_p(j, i) <= 0.05
    )
    assert mcnemar_power(n, share, gap) == pytest.approx(power, abs=1e-9)


def test_smallest_detectable_score_by_hand():
    differences = np.array([1.0, -1.0] * 50)
    expected = (1.9842 + 0.8453) * (100 / 99) ** 0.5 / 10  # t quantiles with 99 degrees of freedom
    assert smallest_detectable_score(differences) == pytest.approx(expected, rel=1e-3)


class TestSimulation:
    def test_no_difference_is_rarely_called_one(self):
        """Right and wrong at 60 %, no true difference: at most 5 % verdicts."""
        generator = np.random.default_rng(0)
        verdicts = 0
        for _ in range(1500):
            a, b = generator.random(120) < 0.6, generator.random(120) < 0.6
            only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
            verdicts += mcnemar_p(only_a, only_b) <= 0.05
        assert verdicts / 1500 <= 0.05

    def test_no_difference_in_scores(self):
        """Skewed scores, no true difference: 5 %, and 3 standard errors of 2,000 draws."""
        generator = np.random.default_rng(1)
        found = 0
        for seed in range(2000):
            scores = generator.beta(0.4, 0.4, (2, 60))
            found += sign_flip_p(scores[1] - scores[0], seed=seed, resamples=499) <= 0.05
        assert found / 2000 <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5

    @pytest.mark.parametrize(("num_items", "share"), [(150, 0.2), (400, 0.1)])
    def test_the_stated_difference_is_found_four_times_out_of_five(self, num_items, share):
        gap = smallest_detectable_right_wrong(num_items, share)
        generator = np.random.default_rng(2)
        chances = [(share - gap) / 2, (share + gap) / 2, 1 - share]
        counts = generator.multinomial(num_items, chances, 1500)
        found = np.mean([mcnemar_p(int(a), int(b)) <= 0.05 for a, b, _ in counts])
        assert found == pytest.approx(0.8, abs=0.035)

    def test_the_stated_difference_in_scores_is_found_too(self):
        generator = np.random.default_rng(3)
        gap = (1.984 + 0.845) * 0.3 / 10  # what smallest_detectable_score says of this spread
        found = 0
        for seed in range(300):
            differences = generator.normal(gap, 0.3, 100)
            found += compare_scores(np.zeros(100), differences, seed=seed, resamples=999).p <= 0.05
        assert found / 300 == pytest.approx(0.8, abs=0.07)

    def test_the_stated_difference_is_found_where_only_one_of_three_metrics_moves(self):
        """Holm then asks the one metric for a third of 5 %, and what was stated must hold still."""
        gap = smallest_detectable_right_wrong(300, 0.2, alpha=0.05 / 3)
        assert gap > smallest_detectable_right_wrong(300, 0.2)
        generator = np.random.default_rng(7)
        counts = generator.multinomial(300, [(0.2 - gap) / 2, (0.2 + gap) / 2, 0.8], 1500)
        others = generator.random((1500, 2))  # p-values of metrics that do not move
        found = np.mean(
            [
                holm([mcnemar_p(int(a), int(b)), *two])[0] <= 0.05
                for (a, b, _), two in zip(counts, others, strict=True)
            ]
        )
        assert 0.8 - 0.035 <= found <= 0.85

    def test_three_metrics_without_difference(self):
        """Correlated metrics judged together: any verdict at all at most 5 % of the time."""
        generator = np.random.default_rng(9)
        verdicts = 0
        for seed in range(200):
            scores = generator.random((2, 50))
            a, b = scores
            found = with_holm(
                {
                    "exact": compare_right_wrong(a > 0.4, b > 0.4),
                    "f1": compare_scores(a, b, seed=seed, resamples=399),
                    "loss": compare_scores(a**3, b**3, seed=seed, resamples=399),
                }
            )
            verdicts += any(one.verdict in ("better", "worse") for one in found.values())
        assert verdicts / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5

    def test_rare_large_drops_do_not_pass_as_the_same(self):
        """4 % of the answers lose half of their score: 2 points, just the margin."""
        generator = np.random.default_rng(10)
        for num_items in (60, 200, 500):
            passed = 0
            for _ in range(2000):
                drops = np.where(generator.random(num_items) < 0.04, -0.5, 0.0)
                passed += equivalence(*shared_interval(drops), 0.02) == "equivalent"
            assert passed / 2000 <= 0.05

    @pytest.mark.parametrize("num_items", [4, 8, 15, 40])
    def test_the_interval_covers_in_small_sets(self, num_items):
        """Graded scores, and losses: the true difference lies inside 95 % of the time."""
        generator = np.random.default_rng(12)
        inside = np.zeros(2)
        for seed in range(600):
            a = generator.beta(0.8, 0.8, num_items)
            b = generator.beta(1.2, 0.8, num_items)
            graded = compare_scores(a, b, seed=seed, resamples=499)
            losses = generator.normal(0.1, 1, num_items)
            loss = compare_scores(
                np.zeros(num_items), losses, sizes=np.ones(num_items), seed=seed, resamples=499
            )
            inside += graded.low <= 0.1 <= graded.high, loss.low <= 0.1 <= loss.high
        assert (inside / 600 >= 0.95 - 3 * (0.05 * 0.95 / 600) ** 0.5 - 0.01).all()

    def test_nothing_to_see_is_not_a_set_that_could_show_everything(self):
        same = compare_scores([0.5] * 40, [0.5] * 40)
        assert same.smallest_detectable == smallest_detectable_right_wrong(40, 0.0)
        few = compare_scores([0.0] * 4, [1.0] * 4)
        assert (few.smallest_detectable, few.verdict) == (1.0, "too_few")
        assert few.low < 0.5
        assert compare_scores([0.0], [1.0], sizes=[3.0]).low == -np.inf


class TestSameness:
    @pytest.mark.parametrize(
        ("num_items", "margin"), [(30, 0.1), (120, 0.02), (160, 0.05), (200, 0.02), (300, 0.1)]
    )
    @pytest.mark.parametrize("loses", [0.0, 0.003, 0.03])
    def test_a_true_difference_at_the_margin_passes_at_most_1_in_20(self, num_items, margin, loses):
        """Every outcome enumerated; b loses `margin` more items than it gains."""
        from scipy.stats import multinomial

        chances = [margin + loses, loses, 1 - margin - 2 * loses]
        passes = 0.0
        for only_a in range(num_items + 1):
            for only_b in range(num_items + 1 - only_a):
                rest = num_items - only_a - only_b
                if only_a + only_b > 4 + 2.5 * num_items * sum(chances[:2]):
                    break  # less than 1e-4 of the outcomes
                if only_a - only_b > margin * num_items:
                    continue  # the estimate itself lies beyond the margin
                differences = np.repeat([-1.0, 1.0, 0.0], [only_a, only_b, rest])
                if equivalence(*shared_interval(differences), margin) == "equivalent":
                    passes += multinomial.pmf([only_a, only_b, rest], num_items, chances)
        assert passes <= 0.05

    def test_it_is_bonett_and_price_and_one_and_a_half_items(self):
        differences = np.repeat([-1.0, 1.0, 0.0], [9, 19, 70])
        low, high = difference_interval(9, 19, 98, level=0.9)
        assert shared_interval(differences) == pytest.approx((low - 1.5 / 98, high + 1.5 / 98))

    def test_a_few_ties_prove_nothing(self):
        assert equivalence(*shared_interval(np.zeros(3)), 0.1) == "unclear"
        assert equivalence_interval([-5.0] * 3, [-5.0] * 3, sizes=[4] * 3) == (-np.inf, np.inf)

    def test_fewest_for_sameness_is_where_ties_begin_to_do(self):
        for margin in (0.02, 0.1):
            fewest = fewest_for_sameness(margin)
            assert equivalence(*shared_interval(np.zeros(fewest)), margin) == "equivalent"
            assert equivalence(*shared_interval(np.zeros(fewest - 1)), margin) == "unclear"
        assert fewest_for_sameness(0.02) > np.log(0.05) / np.log(0.98)  # the rule of three

    def test_losses_get_the_wider_of_two_intervals(self):
        generator = np.random.default_rng(11)
        b = generator.exponential(1, 8) - 1
        low, high = equivalence_interval(np.zeros(8), b, sizes=np.ones(8))
        width = 1.8946 * np.std(b, ddof=1) / 8**0.5  # t with 7 degrees of freedom, one side 5 %
        assert low <= b.mean() - width + 1e-4
        assert high >= b.mean() + width - 1e-4


def test_equivalence_words():
    assert equivalence(-0.01, 0.015, 0.02) == "equivalent"
    assert equivalence(0.03, 0.05, 0.02) == "different"
    assert equivalence(-0.06, -0.03, 0.02) == "different"
    assert equivalence(-0.03, 0.01, 0.02) == "unclear"


def test_agreement_interval_by_hand():
    low, high = agreement_interval(20, 20, level=0.9)
    assert (low, high) == (pytest.approx(0.05 ** (1 / 20)), 1.0)


def test_comparison_is_plain_data():
    from dataclasses import asdict

    assert isinstance(compare_scores([0.0] * 10, [1.0] * 10), Comparison)
    assert set(asdict(compare_scores([0.0] * 10, [1.0] * 10))) >= {"p", "low", "high", "verdict"}
