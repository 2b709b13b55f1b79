"""The demo from end to end: plan, train, merge, score all three on held-out requests, report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loracle.domain.plan import Plan
from loracle.domain.recipe import Recipe
from loracle.errors import RunError
from loracle.jobs.demo.make_data import write_data
from loracle.jobs.demo.model import demo_model
from loracle.jobs.runs import RunFolder, write_json, write_whole
from loracle.jobs.statistics import Comparison
from loracle.jobs.train.failure import failure_of
from loracle.jobs.train.launch import create_run, follow, start
from loracle.jobs.train.options import Options
from loracle.jobs.writing import writing

if TYPE_CHECKING:
    from loracle.jobs.evaluate.judge import Equivalence
    from loracle.jobs.evaluate.result import Evaluation

STEPS, QUESTIONS = 80, 120
METHODS = ("lora", "qlora")
MAX_NEW_TOKENS = 28  # the longest ticket takes 25
SCHEMA = "loracle.demo/1"

Tell = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One held-out request with both answers."""

    question: str
    wanted: str
    base: str
    tuned: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What the demo showed; `seconds` by stage, in order."""

    folder: Path
    run: RunFolder
    plan: Plan
    comparison: Comparison
    base_right: int
    tuned_right: int
    merged_right: int
    same: "Equivalence"  # the merged model against the adapter
    examples: tuple[Example, ...]
    seconds: dict[str, float]

    def document(self) -> dict[str, object]:
        """Plain data for `report.json`."""
        return {
            "schema": SCHEMA,
            "run": str(self.run.path),
            "base_right": self.base_right,
            "tuned_right": self.tuned_right,
            "merged_right": self.merged_right,
            "comparison": asdict(self.comparison),
            "equivalence": asdict(self.same),
            "examples": [asdict(one) for one in self.examples],
            "seconds": self.seconds,
        }


def demo_recipe(folder: Path, model: Path, *, method: str = "lora", steps: int = STEPS) -> Recipe:
    """The demo's recipe: found by experiment to learn the task in a few CPU minutes."""
    return Recipe.model_validate(
        {
            "model": str(model),
            "method": method,
            "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "held_out.jsonl")},
            "lora": {"rank": 16, "alpha": 32, "targets": "all-linear"},
            "training": {
                "seq_len": 256,
                "steps": steps,
                "effective_batch": 2,
                "micro_batch": 2,
                "gradient_checkpointing": False,
                "optimizer": "adamw_torch",
                "learning_rate": 2e-3,
                "warmup_share": 0.05,
            },
            "save": {
                "every_steps": 24,
                "every_minutes": 2,
                "keep": 1,
                "folder": str(folder / "runs"),
            },
            "evaluation": {
                "metric": "exact",
                "every_steps": 1000,
                "max_new_tokens": MAX_NEW_TOKENS,
            },
        }
    )


def run_demo(
    folder: Path,
    *,
    method: str = "lora",
    steps: int = STEPS,
    questions: int = QUESTIONS,
    tell: Tell = lambda message, values: None,
) -> DemoReport:
    """Run everything in `folder`; `tell` gets message ids with values as the stages begin.

    Raises MachineError E051 without the demo's packages, E053 or E054 where `folder`
    cannot be written, and what a failed training raises.
    """
    began = time.monotonic()
    seconds: dict[str, float] = {}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
    model = demo_model()
    recipe = demo_recipe(folder, model, method=method, steps=steps)
    plan = _plan(recipe)
    with writing(folder):
        _write_recipe(folder, recipe)
    seconds["plan"] = _lap(began, seconds)
    tell("planned", {"plan": plan})

    run = create_run(recipe, Options())
    tell("training", {"run": run, "steps": steps})
    for _ in follow(run, pid=start(run)):
        pass
    if (failure := failure_of(run)) is not None:
        raise failure
    if run.state() != "finished":
        raise RunError("error.train.not_running", code="E062", name=run.name, state=run.state())
    seconds["train"] = _lap(began, seconds)

    tell("merging", {"run": run})
    merged = _merge(run)
    seconds["merge"] = _lap(began, seconds)

    evaluation = _score(folder, run, merged, questions, tell)
    seconds["score"] = _lap(began, seconds)
    report = _report(folder, run, plan, evaluation, seconds)
    write_json(folder / "report.json", report.document())
    return report


def _plan(recipe: Recipe) -> Plan:
    """The plan over every card of the catalog: what the demo would cost if it were rented."""
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    return make_plan(
        recipe, gather(recipe, today=datetime.now(UTC).date().isoformat(), offline=True)
    )


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    import yaml

    document = recipe.model_dump(mode="json", exclude_defaults=True)
    write_whole(folder / "recipe.yaml", yaml.safe_dump(document, sort_keys=False).encode())


def _merge(run: RunFolder) -> Path:
    """`loracle merge RUN`; the evaluation that follows is its proof."""
    from loracle.jobs.evaluate.targets import find_target
    from loracle.jobs.merge.deed import merge_target

    return merge_target(find_target(str(run.path)), verifies=False).kept.result.folder


def _score(folder: Path, run: RunFolder, merged: Path, questions: int, tell: Tell) -> "Evaluation":
    """Base, adapter and merged model on the held-out requests, as `loracle evaluate RUN` does."""
    from loracle.jobs.evaluate.evaluate import evaluate
    from loracle.jobs.evaluate.result import Spec
    from loracle.jobs.evaluate.subjects import choose_device, compute_dtype
    from loracle.jobs.evaluate.targets import find_target, subjects_of

    device = choose_device()
    target = find_target(str(run.path))
    spec = Spec(
        data=str(folder / "held_out.jsonl"),
        train_data=str(folder / "train.jsonl"),
        metric="exact",
        max_new_tokens=MAX_NEW_TOKENS,
        batch=32,
        max_items=questions,
    )
    return evaluate(
        subjects_of(target, dtype=compute_dtype(device, target.dtype), merged=[merged]),
        spec,
        run.path / "evaluation",
        device=device,
        tokenizer_source=target.tokenizer,
        progress=lambda who, done, total: tell("scoring", {"who": who, "total": total}),
    )


def _report(
    folder: Path, run: RunFolder, plan: Plan, evaluation: "Evaluation", seconds: dict[str, float]
) -> DemoReport:
    base, tuned = evaluation.scores["base"], evaluation.scores["adapter"]
    merged, same = next(iter(evaluation.equivalences.items()))
    rows = zip(evaluation.items, base.texts, tuned.texts, strict=True)
    return DemoReport(
        folder=folder,
        run=run,
        plan=plan,
        comparison=evaluation.comparisons["base>adapter"]["exact"],
        base_right=round(sum(base.by_metric["exact"])),
        tuned_right=round(sum(tuned.by_metric["exact"])),
        merged_right=round(sum(evaluation.scores[merged].by_metric["exact"])),
        same=same,
        examples=tuple(
            Example(
                question=item.question, wanted=item.reference or "", base=b or "", tuned=t or ""
            )
            for item, b, t in list(rows)[:3]
        ),
        seconds=dict(seconds),
    )


def _lap(began: float, seconds: dict[str, float]) -> float:
    return round(time.monotonic() - began - sum(seconds.values()), 1)
