"""The evaluation as people read it: scores, comparisons, sameness, advice, samples."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.jobs.evaluate.result import Evaluation
    from loracle.jobs.statistics import Comparison


def show(
    output: Output,
    name: str,
    evaluation: "Evaluation",
    folder: Path,
    samples: int,
    tasks: Any = None,
) -> None:
    """Print a whole evaluation; in quiet mode one line."""
    if output.mode == "quiet":
        _quiet(output, evaluation)
        return
    output.line(
        output.text(
            "evaluate.title",
            name=name,
            items=len(evaluation.items),
            data=Path(evaluation.spec.data).name,
            device=evaluation.device,
        )
    )
    _scores(output, evaluation)
    for pair, found in evaluation.comparisons.items():
        a, _, b = pair.partition(">")
        output.line()
        output.line(output.text("evaluate.versus", a=a, b=b))
        _comparison(output, found)
    if evaluation.equivalences:
        _sameness(output, evaluation)
    if tasks:
        _tasks(output, tasks)
    output.line()
    for hint in evaluation.hints:
        output.line(output.text(hint.id, **_readable(hint.values)))
    for one in evaluation.warnings:
        output.warning(one.id, **one.values)
    if evaluation.unscored:
        limit = evaluation.spec.max_tokens
        output.warning("evaluate.unscored", rows=evaluation.unscored, limit=limit)
    _cut(output, evaluation)
    _duplicates(output, evaluation)
    for index in range(min(samples, len(evaluation.items))):
        _sample(output, evaluation, index)
    output.note(output.text("evaluate.items_in", path=folder / "items"))


def _scores(output: Output, evaluation: "Evaluation") -> None:
    columns = [Column(output.text("evaluate.subject"))]
    columns += [Column(metric.upper(), right=True) for metric in evaluation.metrics]
    columns += [Column(output.text(f"evaluate.{key}"), right=True) for key in ("loss", "ended")]
    rows = [
        [
            one.id,
            *(f"{one.mean(metric):.1%}" for metric in evaluation.metrics),
            f"{one.loss:.4f}",
            "-" if one.ended_share is None else f"{one.ended_share:.0%}",
        ]
        for one in evaluation.scores.values()
    ]
    output.table(columns, rows)


def _comparison(output: Output, found: Mapping[str, "Comparison"]) -> None:
    keys = ("metric", "difference", "interval", "p", "detectable", "verdict")
    columns = [
        Column(output.text(f"evaluate.{key}"), right=key not in ("metric", "verdict"))
        for key in keys
    ]
    rows = []
    for metric, one in found.items():
        sign = -1 if metric == "loss" else 1  # a loss is shown as it is: down is better
        low, high = sorted((sign * one.low, sign * one.high))
        rows.append(
            [
                metric,
                difference(sign * one.difference, metric),
                f"{difference(low, metric)} .. {difference(high, metric)}",
                probability(one.adjusted_p),
                difference(one.smallest_detectable, metric).lstrip("+"),
                output.text(f"evaluate.verdicts.{one.verdict}"),
            ]
        )
    output.table(columns, rows)


def _sameness(output: Output, evaluation: "Evaluation") -> None:
    output.line()
    margin = f"{evaluation.spec.margin:.3g}"
    output.line(output.text("evaluate.same_title", margin=margin))
    keys = ("subject", "difference", "interval90", "same_answers", "kl", "top1", "verdict")
    columns = [
        Column(output.text(f"evaluate.{key}"), right=key not in ("subject", "verdict"))
        for key in keys
    ]
    rows = []
    for name, one in evaluation.equivalences.items():
        close = one.fidelity
        rows.append(
            [
                name,
                f"{one.metric} {difference(one.difference, one.metric)}",
                f"{difference(one.low, one.metric)} .. {difference(one.high, one.metric)}",
                "-" if one.same_answers is None else f"{one.same_answers:.1%}",
                "-" if close is None else f"{close.kl:.2g}",
                "-" if close is None else f"{close.top1:.2%}",
                output.text(f"evaluate.verdicts.{one.verdict}"),
            ]
        )
    output.table(columns, rows)
    for name, one in evaluation.equivalences.items():
        by_tokens = one.verdict == "equivalent" and max(-one.low, one.high) >= one.margin
        if by_tokens and one.score_bound is not None:
            bound = difference(one.score_bound, one.metric).lstrip("+")
            output.line(output.text("evaluate.by_tokens", id=name, bound=bound))


def _cut(output: Output, evaluation: "Evaluation") -> None:
    """Answers that ran into the limit are scored as they stand; a reader must know."""
    found = [
        f"{one.id} {1 - one.ended_share:.0%}"
        for one in evaluation.scores.values()
        if one.ended_share is not None and one.ended_share < 1
    ]
    if found:
        limit = evaluation.spec.max_new_tokens
        output.warning("evaluate.cut", limit=limit, shares=", ".join(found))


def _duplicates(output: Output, evaluation: "Evaluation") -> None:
    found = evaluation.duplicates
    if found is None:
        return
    for key, rows in (
        ("duplicates", found.same_row),
        ("duplicate_questions", found.same_question),
        ("inside", found.inside),
    ):
        if rows:
            first = ", ".join(str(row) for row in rows[:5])
            output.warning(f"evaluate.{key}", rows=len(rows), first=first)


def _sample(output: Output, evaluation: "Evaluation", index: int) -> None:
    item = evaluation.items[index]
    output.line()
    labels = (output.text("evaluate.question"), output.text("evaluate.reference"))
    rows = [[labels[0], item.question], [labels[1], item.reference or ""]]
    rows += [[one.id, one.texts[index] or ""] for one in evaluation.scores.values()]
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        output.line(f"  {label:<{width}}  {text.strip()}")


def _tasks(output: Output, tasks: Mapping[str, Any]) -> None:
    output.line()
    output.line(output.text("evaluate.tasks_title"))
    names = sorted({task for scores in tasks.values() for task in scores})
    columns = [Column(output.text("evaluate.task"))]
    columns += [Column(subject, right=True) for subject in tasks]
    rows = [
        [name, *(f"{scores[name]:.2%}" if name in scores else "-" for scores in tasks.values())]
        for name in names
    ]
    output.table(columns, rows)


def _quiet(output: Output, evaluation: "Evaluation") -> None:
    found = evaluation.comparisons
    pair = next((one for one in ("base>adapter", "base>tuned") if one in found), None)
    if pair is None:
        return
    one = found[pair][evaluation.metric]
    a, _, b = pair.partition(">")
    output.line(
        output.text(
            "evaluate.quiet",
            verdict=output.text(f"evaluate.verdicts.{one.verdict}"),
            metric=evaluation.metric,
            a=f"{evaluation.scores[a].mean(evaluation.metric):.4g}",
            b=f"{evaluation.scores[b].mean(evaluation.metric):.4g}",
            p=probability(one.adjusted_p),
        )
    )


def difference(value: float, metric: str) -> str:
    """`+12.5 %` for shares, `-0.213` for a loss in nats."""
    return f"{value:+.3f}" if metric == "loss" else f"{value * 100:+.1f} %"


def probability(p: float) -> str:
    """`0.031`, `3e-12`."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _readable(values: Mapping[str, object]) -> dict[str, object]:
    metric = str(values.get("metric", ""))
    found = dict(values)
    for key in ("difference", "smallest", "margin"):
        if isinstance(values.get(key), float):
            found[key] = difference(float(str(values[key])), metric).lstrip("+")
    if isinstance(values.get("p"), float):
        found["p"] = probability(float(str(values["p"])))
    return found
