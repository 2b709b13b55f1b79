"""Is it still the same? Sameness is claimed, never assumed: no evidence of a difference is none.

Two one-sided tests (Schuirmann 1987): the whole 90 % interval must lie inside the margin.
"""

from collections.abc import Sequence

from loracle.jobs.intervals import bootstrap_interval, shared_interval, student_interval, wider
from loracle.jobs.statistics import FEWEST_DISCORDANT

EQUIVALENCE = ("equivalent", "different", "unclear")


def equivalence(low: float, high: float, margin: float) -> str:
    """equivalent where the interval lies inside +-margin, different where it lies outside.

    With a 90 % interval this is two one-sided tests at 5 %; with 95 % it is stricter.
    """
    if -margin < low and high < margin:
        return "equivalent"
    return "different" if low >= margin or high <= -margin else "unclear"


def equivalence_interval(
    a: Sequence[float],
    b: Sequence[float],
    *,
    sizes: Sequence[float] | None = None,
    seed: int = 0,
    level: float = 0.9,
) -> tuple[float, float]:
    """The 90 % interval of the mean difference that two one-sided tests at 5 % look at.

    Scores from 0 to 1: `shared_interval`. With `sizes` the scores are sums over so many parts and
    have no bounds; then it is the wider of the bootstrap's and Student's at each end, and without
    bounds below 6 items, which could look alike by chance.
    """
    import numpy as np

    differences = np.asarray(b, float) - np.asarray(a, float)
    if sizes is None:
        return shared_interval(differences, level=level)
    if len(differences) < FEWEST_DISCORDANT:
        return -float("inf"), float("inf")
    parts = np.asarray(sizes, float)
    return wider(
        bootstrap_interval(differences, parts, seed=seed, level=level),
        student_interval(differences, parts, level=level),
    )


def fewest_for_sameness(margin: float, *, most: int = 1_000_000) -> int:
    """Items that it takes to claim sameness within a margin when none of them differs."""
    import numpy as np

    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        inside = shared_interval(np.zeros(middle))[1] < margin
        low, high = (low, middle) if inside else (middle + 1, high)
    return low


def agreement_interval(agreeing: int, num_items: int, *, level: float = 0.9) -> tuple[float, float]:
    """Clopper-Pearson interval of a share of items that agree."""
    from scipy.stats import binomtest

    interval = binomtest(agreeing, num_items).proportion_ci(confidence_level=level, method="exact")
    return float(interval.low), float(interval.high)
