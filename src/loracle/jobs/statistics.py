"""Is it better? Tests and intervals for two models that answered the same questions.

Everything is paired: each item is answered by both, and only the differences carry information.
Right or wrong is compared by McNemar's exact test, graded scores by a paired bootstrap with a
sign-flip test, several metrics by Holm's step-down. Below a few hundred items the normal
approximation is not used at all.

Sources: McNemar 1947; Holm 1979; Efron and Tibshirani 1993; Bonett and Price 2012; Miller 2024,
"Adding error bars to evals" (arXiv 2411.00640).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loracle.jobs.intervals import (
    ALPHA,
    RESAMPLES,
    bootstrap_interval,
    difference_interval,
    residuals,
    shared_interval,
    student_interval,
    wider,
)

if TYPE_CHECKING:
    import numpy

POWER = 0.8
COARSE = 0.1  # a set that cannot show 10 points says little when it shows none
FEW_ITEMS = 30  # below this a bootstrap's interval is too narrow
FEWEST_DISCORDANT = 6  # 2 x 0.5^5 = 0.0625: five one-sided pairs cannot reach 0.05
VERDICTS = ("better", "worse", "no_evidence", "too_few")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`b` against `a` on the same items: mean difference b - a with an interval, and a verdict.

    `p` is two-sided; `adjusted_p` is Holm's over the metrics compared together (p itself for one).
    `smallest_detectable` is the true difference that a set of this size finds 4 times out of 5,
    also where no other metric moves and Holm asks for the smallest p.
    `verdict` is better, worse, no_evidence, or too_few: nothing found, in a set too small to find
    a difference of `coarse`.
    """

    test: str  # mcnemar, bootstrap
    num_items: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    smallest_detectable: float
    verdict: str
    coarse: float = COARSE
    only_a: int | None = None  # items that only a got right
    only_b: int | None = None


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test: a fair coin over the discordant pairs.

    1.0 where there are none.
    """
    from scipy.stats import binomtest

    discordant = only_a + only_b
    return float(binomtest(only_a, discordant, 0.5).pvalue) if discordant else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: step down, monotone, at most 1."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, running)
    return adjusted


def compare_right_wrong(
    a: Sequence[bool],
    b: Sequence[bool],
    *,
    seed: int = 0,
    clusters: Sequence[object] | None = None,
    judged_together: int = 1,
) -> Comparison:
    """McNemar's exact test of right and wrong answers, with the interval of Bonett and Price.

    `judged_together` is the number of metrics that `with_holm` will see.
    With `clusters` (questions that share a passage) items are not independent, so the bootstrap
    over clusters gives the p as well.
    """
    if clusters is not None:
        graded = [float(x) for x in a], [float(x) for x in b]
        return compare_scores(
            *graded, seed=seed, clusters=clusters, judged_together=judged_together
        )
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    num_items = len(a)
    p = mcnemar_p(only_a, only_b)
    return _comparison(
        "mcnemar",
        [float(x) for x in a],
        [float(x) for x in b],
        difference_interval(only_a, only_b, num_items),
        p,
        smallest_detectable_right_wrong(
            num_items, (only_a + only_b) / num_items, alpha=ALPHA / judged_together
        ),
        only_a=only_a,
        only_b=only_b,
    )


def compare_scores(
    a: Sequence[float],
    b: Sequence[float],
    *,
    seed: int = 0,
    sizes: Sequence[float] | None = None,
    clusters: Sequence[object] | None = None,
    resamples: int = RESAMPLES,
    coarse: float = COARSE,
    judged_together: int = 1,
) -> Comparison:
    """Graded scores from 0 to 1 (higher is better): paired bootstrap interval and sign-flip p.

    With `sizes` the scores are sums over so many parts (log-likelihoods over tokens), of any
    size, and means are per part.

    The p-value is of the exact null "no difference": under it each pair's sign is a fair coin, so
    signs are flipped at random (all of them where there are few). Items of one cluster are drawn
    and flipped together. `coarse` is in the unit of the scores.
    """
    import numpy as np

    parts = np.ones(len(a)) if sizes is None else np.asarray(sizes, float)
    differences = np.asarray(b, float) - np.asarray(a, float)
    sums, weights = _by_cluster(differences, parts, clusters)
    alpha = ALPHA / judged_together
    smallest = smallest_detectable_score(residuals(sums, weights), alpha=alpha)
    if sizes is None:
        without_spread = smallest_detectable_right_wrong(len(sums), 0.0, alpha=alpha)
        smallest = min(smallest or without_spread, 1.0)
    is_bounded = sizes is None and clusters is None
    return _comparison(
        "bootstrap",
        a,
        b,
        _interval(sums, weights, is_bounded=is_bounded, seed=seed, resamples=resamples),
        sign_flip_p(sums, seed=seed, resamples=resamples),
        smallest,
        coarse=coarse,
        num_parts=float(parts.sum()),
    )


def with_holm(comparisons: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """The same comparisons judged together: Holm's p, and verdicts by it."""
    from dataclasses import replace

    adjusted = holm([one.p for one in comparisons.values()])
    return {
        name: replace(
            one,
            adjusted_p=p,
            verdict=_verdict(one.difference, p, one.num_items, one.smallest_detectable, one.coarse),
        )
        for (name, one), p in zip(comparisons.items(), adjusted, strict=True)
    }


def sign_flip_p(sums: "numpy.ndarray", *, seed: int, resamples: int = RESAMPLES) -> float:
    """Two-sided p of "no difference": how often random signs give a sum as far from 0.

    Exact up to 13 pairs that differ; else `resamples` seeded draws, the observed one counted in,
    which keeps the test valid.
    """
    import numpy as np

    moved = sums[sums != 0]
    if not len(moved):
        return 1.0
    observed = abs(moved.sum()) * (1 - 1e-12)
    if 2 ** len(moved) <= resamples:
        signs = ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1) * 2 - 1
        return float(np.mean(np.abs(signs @ moved) >= observed))
    generator = np.random.default_rng(seed + 1)
    hits = 0
    step = max(1, 4_000_000 // len(moved))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        signs = generator.integers(0, 2, (rows, len(moved)), dtype=np.int8) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ moved) >= observed))
    return (hits + 1) / (resamples + 1)


def smallest_detectable_right_wrong(
    num_items: int, discordant_share: float, *, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Smallest true difference in accuracy that McNemar's exact test finds with this power.

    The discordant share counts as it was observed (at least one pair). The power is exact: the
    number of discordant pairs is binomial, and so is the winner's part of them. 1.0 where no
    difference could be found.
    """
    if num_items < FEWEST_DISCORDANT:
        return 1.0
    share = min(1.0, max(discordant_share, 1 / num_items))
    if mcnemar_power(num_items, share, share, alpha) < power:
        # not even a one-sided difference of that size shows: it must bring more discordance
        return _smallest(lambda gap: mcnemar_power(num_items, gap, gap, alpha), share, 1.0, power)
    return _smallest(lambda gap: mcnemar_power(num_items, share, gap, alpha), 0.0, share, power)


def mcnemar_power(
    num_items: int, discordant_share: float, difference: float, alpha: float = ALPHA
) -> float:
    """Chance that the exact test rejects, for a true discordant share and difference."""
    import numpy as np
    from scipy.stats import binom

    win = 0.5 + difference / (2 * discordant_share)
    counts = np.arange(num_items + 1)
    weights = binom.pmf(counts, num_items, discordant_share)
    likely = counts[weights > 1e-9]
    critical = binom.ppf(alpha / 2, likely, 0.5) - 1  # largest k with P(X <= k) <= alpha / 2
    critical = np.where(binom.cdf(critical + 1, likely, 0.5) <= alpha / 2, critical + 1, critical)
    rejects = binom.cdf(critical, likely, 1 - win) + binom.cdf(critical, likely, win)
    return float((weights[likely] * np.where(critical >= 0, rejects, 0)).sum())


def smallest_detectable_score(
    differences: "numpy.ndarray", *, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Smallest true mean difference found with this power, from the spread of the differences.

    (z_0.975 + z_0.8) x standard error at 5 %, with Student's t for small sets. Infinite where even
    differences of one sign in every item would not be significant.
    """
    import numpy as np
    from scipy.stats import t

    count = len(differences)
    if count < 2 or 2 * 0.5**count > alpha:
        return float("inf")
    error = float(np.std(differences, ddof=1)) / count**0.5
    return float((t.ppf(1 - alpha / 2, count - 1) + t.ppf(power, count - 1)) * error)


def _interval(
    sums: "numpy.ndarray",
    sizes: "numpy.ndarray",
    *,
    is_bounded: bool,
    seed: int,
    resamples: int,
) -> tuple[float, float]:
    """The bootstrap's interval, which is too narrow for a few items: then the wider of two."""
    drawn = bootstrap_interval(sums, sizes, seed=seed, resamples=resamples)
    if len(sums) >= FEW_ITEMS:
        return drawn
    if is_bounded:
        return wider(drawn, shared_interval(sums, level=1 - ALPHA, more_items=0.0))
    return wider(drawn, student_interval(sums, sizes))


def _comparison(
    test: str,
    a: Sequence[float],
    b: Sequence[float],
    interval: tuple[float, float],
    p: float,
    smallest: float,
    *,
    coarse: float = COARSE,
    only_a: int | None = None,
    only_b: int | None = None,
    num_parts: float | None = None,
) -> Comparison:
    parts = num_parts or len(a)
    mean_a, mean_b = sum(a) / parts, sum(b) / parts
    return Comparison(
        test=test,
        num_items=len(a),
        mean_a=mean_a,
        mean_b=mean_b,
        difference=mean_b - mean_a,
        low=interval[0],
        high=interval[1],
        p=p,
        adjusted_p=p,
        smallest_detectable=smallest,
        verdict=_verdict(mean_b - mean_a, p, len(a), smallest, coarse),
        coarse=coarse,
        only_a=only_a,
        only_b=only_b,
    )


def _verdict(difference: float, p: float, num_items: int, smallest: float, coarse: float) -> str:
    if p <= ALPHA and difference != 0:
        return "better" if difference > 0 else "worse"
    return "too_few" if num_items < FEWEST_DISCORDANT or smallest > coarse else "no_evidence"


def _by_cluster(
    differences: "numpy.ndarray", parts: "numpy.ndarray", clusters: Sequence[object] | None
) -> tuple["numpy.ndarray", "numpy.ndarray"]:
    """Sum and size of each cluster; each item its own where there are none."""
    import numpy as np

    if clusters is None:
        return differences, parts
    names = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    index = np.array([names[one] for one in clusters])
    return (
        np.bincount(index, weights=differences, minlength=len(names)),
        np.bincount(index, weights=parts, minlength=len(names)),
    )


def _smallest(power_at: Callable[[float], float], low: float, high: float, power: float) -> float:
    """Bisection for the smallest gap with the wanted power; 1.0 where the largest lacks it."""
    if power_at(high) < power:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if power_at(middle) >= power:
            high = middle
        else:
            low = middle
    return high
