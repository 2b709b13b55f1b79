"""Which of the candidates to take: what may be recommended, in which order, and what beats what."""

from collections.abc import Sequence
from dataclasses import replace

from loracle.domain.plan import Candidate
from loracle.planner.cost import Budget, Market, within

_RANKED_FITS = ("fits", "tight")
_EXCLUDING = ("over_budget", "late", "shared", "high_risk", "no_price")


def rank(
    candidates: Sequence[Candidate],
    *,
    budget: Budget | None,
    deadline_seconds: float | None,
    market: Market,
    prices_matter: bool,
) -> tuple[Candidate, ...]:
    """Candidates in order: those to recommend by cost, then time; then the others.

    Recommended are those that fit without doubt, in the budget, by the deadline, on hardware that
    nobody else shares. `prices_matter` is False where no candidate has an offer: then they are
    ordered by time. The cheapest, the fastest and those that another one beats in both are
    labelled.
    """
    judged = [
        _judged(one, budget, deadline_seconds, market, prices_matter) for one in candidates
    ]  # fmt: skip
    chosen = sorted((one for one in judged if _recommendable(one)), key=_order)
    rest = sorted((one for one in judged if not _recommendable(one)), key=_rest_order)
    ranked = [replace(one, rank=place) for place, one in enumerate(chosen, start=1)]
    return (*_labelled(ranked), *rest)


def _judged(
    one: Candidate,
    budget: Budget | None,
    deadline_seconds: float | None,
    market: Market,
    prices_matter: bool,
) -> Candidate:
    labels = list(one.labels)
    if one.cost is None and prices_matter and one.fit != "no":
        labels.append("no_price")
    if budget is not None and one.cost is not None and not within(one.cost, budget, market):
        labels.append("over_budget")
    if deadline_seconds is not None and one.speed is not None:
        if one.seconds.likely > deadline_seconds:
            labels.append("late")
        elif one.seconds.high > deadline_seconds:
            labels.append("may_be_late")
    return replace(one, labels=tuple(labels))


def _recommendable(one: Candidate) -> bool:
    return one.fit in _RANKED_FITS and not any(label in _EXCLUDING for label in one.labels)


def _order(one: Candidate) -> tuple[float, float]:
    cost = float(one.cost.likely.amount) if one.cost else 0.0
    return cost, one.seconds.likely


def _rest_order(one: Candidate) -> tuple[int, float]:
    fits = ("fits", "tight", "risky", "no")
    return fits.index(one.fit), -one.free_bytes


def _labelled(ranked: list[Candidate]) -> list[Candidate]:
    """Name the cheapest and the fastest, and whom each other one is behind.

    In order of cost, a candidate is beaten by the first one before it that is as fast: only those
    faster than all before them need to be remembered.
    """
    seconds = [one.seconds.likely for one in ranked]
    first_fastest = seconds.index(min(seconds)) if seconds else -1
    front: list[int] = []
    labelled = []
    for index, one in enumerate(ranked):
        labels = one.labels
        if one.rank == 1 and one.cost is not None:
            labels = (*labels, "cheapest")
        if index == first_fastest:
            labels = (*labels, "fastest")
        better = next((at for at in front if _beats(ranked, seconds, at, index)), None)
        if better is not None:
            labels = (*labels, "dominated")
        elif not front or seconds[index] < seconds[front[-1]]:
            front.append(index)
        rank_of_better = None if better is None else ranked[better].rank
        labelled.append(replace(one, labels=labels, dominated_by=rank_of_better))
    return labelled


def _beats(ranked: Sequence[Candidate], seconds: Sequence[float], left: int, right: int) -> bool:
    """Cheaper and as fast, or faster and as cheap; only where both have a price."""
    ours, theirs = ranked[left].cost, ranked[right].cost
    if ours is None or theirs is None:
        return False
    amounts = ours.likely.amount, theirs.likely.amount
    no_worse = amounts[0] <= amounts[1] and seconds[left] <= seconds[right]
    return no_worse and (amounts[0] < amounts[1] or seconds[left] < seconds[right])
