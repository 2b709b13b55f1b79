"""From per-item results to verdicts: better or worse, and the same or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loracle.domain.plan import Hint
from loracle.jobs.evaluate.answers import Answer, Item
from loracle.jobs.evaluate.fidelity import Fidelity
from loracle.jobs.evaluate.metrics import is_right_wrong, score
from loracle.jobs.sameness import (
    agreement_interval,
    equivalence,
    equivalence_interval,
    fewest_for_sameness,
)
from loracle.jobs.statistics import Comparison, compare_right_wrong, compare_scores, with_holm

LOSS_COARSE = 0.05  # nats a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One subject's results: metric by item, summed loss and tokens by item."""

    id: str
    by_metric: Mapping[str, tuple[float, ...]]
    nll: tuple[float, ...]
    labels: tuple[int, ...]
    texts: tuple[str | None, ...]
    ended_share: float | None
    mean_tokens: float | None

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of a labelled token, in nats."""
        return sum(self.nll) / max(1, sum(self.labels))

    def mean(self, metric: str) -> float:
        """Mean of a metric; the loss for `loss`."""
        if metric == "loss":
            return self.loss
        values = self.by_metric[metric]
        return sum(values) / len(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Merged against adapter. `verdict` is equivalent, different or unclear.

    Equivalent: the score difference (90 % interval) lies within the margin; or, where the set is
    too small to say so by its answers, no score can differ by more: two models whose whole
    answers are KL apart score at most sqrt(KL / 2) apart when answers are sampled (Pinsker's
    inequality), which is `score_bound`, with KL's upper 95 % limit on these answers.
    `same_answers` is the share of answers that are equal word for word; `top1_low` the lower
    limit of the share of equal next tokens, as if positions were independent.
    """

    a: str
    b: str
    metric: str
    difference: float
    low: float
    high: float
    margin: float
    same_answers: float | None
    loss_difference: float
    fidelity: Fidelity | None
    top1_low: float | None
    score_bound: float | None
    num_items: int
    verdict: str


def scores_of(
    subject_id: str,
    items: Sequence[Item],
    answers: Mapping[int, Answer],
    metrics: Sequence[str],
    labels: Sequence[str],
) -> Scores:
    """Score every answer; items come in the order of the held-out set."""
    given = [answers[item.row] for item in items]
    by_metric = {
        metric: tuple(
            score(metric, answer.text or "", item.reference or "", labels)
            for item, answer in zip(items, given, strict=True)
        )
        for metric in metrics
    }
    said = [answer for answer in given if answer.text is not None]
    return Scores(
        id=subject_id,
        by_metric=by_metric,
        nll=tuple(answer.nll for answer in given),
        labels=tuple(answer.labels for answer in given),
        texts=tuple(answer.text for answer in given),
        ended_share=sum(one.ended for one in said) / len(said) if said else None,
        mean_tokens=sum(one.tokens for one in said) / len(said) if said else None,
    )


def compare(a: Scores, b: Scores, *, seed: int = 0) -> dict[str, Comparison]:
    """`b` against `a` on every metric and on the loss, judged together (Holm).

    The loss is compared by its negative, so that better is always up; its means are shown as they
    are.
    """
    found = {}
    together = len(a.by_metric) + 1
    for metric, scores in a.by_metric.items():
        theirs = b.by_metric[metric]
        if is_right_wrong(metric):
            right = [x == 1 for x in scores], [x == 1 for x in theirs]
            found[metric] = compare_right_wrong(*right, seed=seed, judged_together=together)
        else:
            found[metric] = compare_scores(scores, theirs, seed=seed, judged_together=together)
    found["loss"] = compare_scores(
        [-x for x in a.nll], [-x for x in b.nll], sizes=a.labels, seed=seed,
        coarse=LOSS_COARSE, judged_together=together,
    )  # fmt: skip
    return with_holm(found)


def same_or_not(
    a: Scores, b: Scores, metric: str, margin: float, fidelity: Fidelity | None
) -> Equivalence:
    """Whether `b` (merged) is `a` (adapter), within the margin of the deciding metric."""
    ours = a.by_metric.get(metric)
    if ours is None:
        low, high = equivalence_interval([-x for x in a.nll], [-x for x in b.nll], sizes=a.labels)
        difference = a.loss - b.loss
    else:
        low, high = equivalence_interval(ours, b.by_metric[metric])
        difference = b.mean(metric) - a.mean(metric)
    verdict = equivalence(low, high, margin)
    top1_low = bound = None
    if fidelity is not None:
        top1_low = agreement_interval(fidelity.same_top, fidelity.positions)[0]
        bound = fidelity.score_bound
        is_close = ours is not None and bound is not None and bound < margin
        if verdict == "unclear" and is_close and abs(difference) < margin:
            verdict = "equivalent"
    said = [(x, y) for x, y in zip(a.texts, b.texts, strict=True) if x is not None]
    return Equivalence(
        a=a.id,
        b=b.id,
        metric=metric,
        difference=difference,
        low=low,
        high=high,
        margin=margin,
        same_answers=sum(x == y for x, y in said) / len(said) if said else None,
        loss_difference=b.loss - a.loss,
        fidelity=fidelity,
        top1_low=top1_low,
        score_bound=bound,
        num_items=len(a.nll),
        verdict=verdict,
    )


def advise(
    *,
    metric: str,
    tuned: Mapping[str, Comparison] | None,
    merged: Mapping[str, Equivalence],
    four_bit: Comparison | None,
    margin: float,
) -> tuple[Hint, ...]:
    """What to do next, as message ids with numbers."""
    hints: list[Hint] = []
    if tuned is not None:
        hints.append(_tuned_hint(tuned[metric], metric))
    good = [one for one in merged.values() if one.verdict == "equivalent"]
    hints += [
        Hint(id="evaluate.advice.merge_differs", values={"id": one.b})
        for one in merged.values()
        if one.verdict == "different"
    ]
    hints += [
        Hint(
            id="evaluate.advice.merge_unclear",
            values={"id": one.b, "n": one.num_items, "needed": fewest_for_sameness(one.margin)},
        )
        for one in merged.values()
        if one.verdict == "unclear"
    ]
    if good:
        best = min(good, key=lambda one: one.loss_difference)
        hints.append(Hint(id="evaluate.advice.deploy", values={"id": best.b}))
    if four_bit is not None and four_bit.difference < -margin and four_bit.verdict == "worse":
        values = {"difference": -four_bit.difference, "margin": margin, "p": four_bit.adjusted_p}
        hints.append(Hint(id="evaluate.advice.use_bf16", values=values))
    return tuple(hints)


def _tuned_hint(one: Comparison, metric: str) -> Hint:
    values = {
        "metric": metric, "difference": one.difference, "p": one.adjusted_p,
        "smallest": one.smallest_detectable, "n": one.num_items,
    }  # fmt: skip
    return Hint(id=f"evaluate.advice.{one.verdict}", values=values)
