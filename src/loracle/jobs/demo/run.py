"""The demo from end to end: plan, train, score base and adapter on held-out requests, report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from loracle.catalog.datasets import read_dataset
from loracle.domain.plan import Plan
from loracle.domain.recipe import Recipe
from loracle.errors import RunError
from loracle.jobs.demo.make_data import write_data
from loracle.jobs.demo.model import demo_model
from loracle.jobs.demo.score import answers_of, load_tuned
from loracle.jobs.runs import RunFolder, write_json, write_whole
from loracle.jobs.statistics import Comparison, compare_right_wrong
from loracle.jobs.train.launch import create_run, failure_of, follow, start
from loracle.jobs.train.options import Options

STEPS, QUESTIONS = 80, 120
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
    examples: tuple[Example, ...]
    seconds: dict[str, float]

    def document(self) -> dict[str, object]:
        """Plain data for `report.json`."""
        return {
            "schema": SCHEMA,
            "run": str(self.run.path),
            "base_right": self.base_right,
            "tuned_right": self.tuned_right,
            "comparison": asdict(self.comparison),
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
            "evaluation": {"metric": "exact", "every_steps": 1000, "max_new_tokens": 28},
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

    Raises MissingExtra without the demo's packages, and what a failed training raises.
    """
    began = time.monotonic()
    seconds: dict[str, float] = {}
    folder.mkdir(parents=True, exist_ok=True)
    model = demo_model()
    write_data(folder)
    recipe = demo_recipe(folder, model, method=method, steps=steps)
    plan = _plan(recipe)
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

    report = _score(folder, run, plan, questions, tell, seconds, began)
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


def _score(
    folder: Path,
    run: RunFolder,
    plan: Plan,
    questions: int,
    tell: Tell,
    seconds: dict[str, float],
    began: float,
) -> DemoReport:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samples = read_dataset(folder / "held_out.jsonl").samples[:questions]
    wanted = [sample.answer or "" for sample in samples]
    model, tokenizer = load_tuned(str(plan.recipe["model"]), run.adapter, device)
    tell("scoring", {"who": "base", "total": len(samples)})
    with model.disable_adapter():
        base = answers_of(model, tokenizer, samples, device)
    seconds["score_base"] = _lap(began, seconds)
    tell("scoring", {"who": "tuned", "total": len(samples)})
    tuned = answers_of(model, tokenizer, samples, device)
    seconds["score_tuned"] = _lap(began, seconds)
    base_marks, tuned_marks = (
        [answer == right for answer, right in zip(answers, wanted, strict=True)]
        for answers in (base, tuned)
    )
    return DemoReport(
        folder=folder,
        run=run,
        plan=plan,
        comparison=compare_right_wrong(base_marks, tuned_marks),
        base_right=sum(base_marks),
        tuned_right=sum(tuned_marks),
        examples=tuple(
            Example(question=s.question, wanted=w, base=b, tuned=t)
            for s, w, b, t in zip(samples[:3], wanted, base, tuned, strict=False)
        ),
        seconds=dict(seconds),
    )


def _lap(began: float, seconds: dict[str, float]) -> float:
    return round(time.monotonic() - began - sum(seconds.values()), 1)
