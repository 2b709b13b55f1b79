"""What an evaluation is asked and what it answers: plain values, and their JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loracle.catalog.datasets import DataReport
from loracle.domain.plan import Hint
from loracle.jobs.evaluate.answers import Item
from loracle.jobs.evaluate.duplicates import Duplicates
from loracle.jobs.evaluate.judge import Equivalence, Scores
from loracle.jobs.evaluate.subjects import Subject
from loracle.jobs.statistics import Comparison

SCHEMA = "loracle.evaluation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is asked. `metric` auto looks at the references; `max_items` takes the first rows."""

    data: str
    format: str = "auto"
    train_data: str | None = None
    metric: str = "auto"
    max_new_tokens: int = 128
    batch: int = 8
    margin: float = 0.02
    max_tokens: int = 2048
    max_items: int | None = None
    train_on: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The whole answer; `document` is its JSON form."""

    spec: Spec
    metrics: tuple[str, ...]
    items: tuple[Item, ...]
    report: DataReport
    unscored: int  # rows whose answer lies beyond `max_tokens`: no label is left to score
    scores: Mapping[str, Scores]
    comparisons: Mapping[str, Mapping[str, Comparison]]  # "a>b": metric: comparison
    equivalences: Mapping[str, Equivalence]  # merged subject: against its adapter
    duplicates: Duplicates | None
    hints: tuple[Hint, ...]
    warnings: tuple[Hint, ...]  # what makes these numbers other than those of serving
    device: str
    subjects: tuple[Subject, ...] = field(default=())

    @property
    def metric(self) -> str:
        """What decides: the first metric, or the loss."""
        return self.metrics[0] if self.metrics else "loss"

    def document(self) -> dict[str, object]:
        """Plain data, without the items (they lie beside it, one file a subject)."""
        return {
            "schema": SCHEMA,
            "data": self.spec.data,
            "num_items": len(self.items),
            "unscored": self.unscored,
            "metrics": list(self.metrics),
            "decides": self.metric,
            "margin": self.spec.margin,
            "device": self.device,
            "subjects": {
                one.id: _subject_document(one, self.scores[one.id]) for one in self.subjects
            },
            "comparisons": {
                pair: {metric: _finite(asdict(one)) for metric, one in found.items()}
                for pair, found in self.comparisons.items()
            },
            "equivalence": {name: _finite(asdict(one)) for name, one in self.equivalences.items()},
            "duplicates": None if self.duplicates is None else asdict(self.duplicates),
            "hints": [asdict(one) for one in self.hints],
            "warnings": [asdict(one) for one in self.warnings],
        }


def _finite(document: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: one item can show no difference at all, which is null."""
    infinite = (float("inf"), -float("inf"))
    return {key: None if value in infinite else value for key, value in document.items()}


def _subject_document(subject: Subject, scores: Scores) -> dict[str, object]:
    plain = replace(subject, adapter=None)
    return {
        "weights": plain.weights,
        "adapter": None if subject.adapter is None else str(subject.adapter),
        "quant": subject.quant,
        "dtype": subject.dtype,
        "loss": scores.loss,
        "ended_share": scores.ended_share,
        "mean_tokens": scores.mean_tokens,
        **{metric: scores.mean(metric) for metric in scores.by_metric},
    }
