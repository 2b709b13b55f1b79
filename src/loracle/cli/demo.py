"""`loracle demo`: the whole way in minutes, with a real small model and no card."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output
from loracle.units import gib

if TYPE_CHECKING:
    from loracle.jobs.demo.run import DemoReport


def run(
    folder: str = typer.Option(
        "loracle-demo", "--folder", help=words.text("help.demo_flag.folder")
    ),
    method: str = typer.Option("lora", "--method", help=words.text("help.demo_flag.method")),
    steps: int = typer.Option(80, "--steps", min=1, help=words.text("help.demo_flag.steps")),
    questions: int = typer.Option(
        120, "--questions", min=1, max=160, help=words.text("help.demo_flag.questions")
    ),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Plan, train, score and report; exit 1 where the tuned model is not shown to be better."""
    from loracle.errors import InputError, MissingExtra
    from loracle.jobs.demo.make_data import NUM_HELD_OUT, NUM_TRAIN
    from loracle.jobs.demo.run import METHODS, run_demo
    from loracle.jobs.evaluate.subjects import quiet_libraries
    from loracle.jobs.libraries import missing_library

    if (missing := missing_library()) is not None:
        raise MissingExtra("train", missing)
    if method not in METHODS:
        raise InputError(
            "error.merge.flag", code="E011", flag="--method", value=method,
            known=", ".join(METHODS),
        )  # fmt: skip
    output = Output("json" if as_json else "quiet" if quiet else "human")
    quiet_libraries()
    output.note(output.text("demo.title", train=NUM_TRAIN, held_out=NUM_HELD_OUT))

    scored: set[str] = set()

    def tell(stage: str, values: dict) -> None:  # type: ignore[type-arg]
        if stage == "planned":
            plan = values["plan"]
            card = plan.candidates[plan.best or 0]
            output.note(
                output.text(
                    "demo.plan",
                    memory=gib(card.memory.device_bytes.likely),
                    card=card.gpu_id,
                    steps=plan.num_steps,
                )
            )
        elif stage == "training":
            output.note(output.text("demo.training", steps=values["steps"]))
            output.note(output.text("train.follow", name=quote(str(values["run"].path))))
        elif stage == "merging":
            output.note(output.text("demo.merging"))
        elif values["who"] not in scored:
            scored.add(values["who"])
            who = output.text(f"demo.who_{values['who'].partition('-')[0]}")
            output.note(output.text("demo.scoring", who=who, total=values["total"]))

    report = run_demo(Path(folder), method=method, steps=steps, questions=questions, tell=tell)
    if output.mode == "json":
        output.json(report.document())
    else:
        _show(output, report)
    raise SystemExit(0 if report.comparison.verdict == "better" else 1)


def _show(output: Output, report: "DemoReport") -> None:
    say = output.text
    for example in report.examples if output.mode == "human" else ():
        output.line()
        output.line(say("demo.question", text=example.question))
        output.line(say("demo.wanted", text=example.wanted))
        output.line(say("demo.base", text=" ".join(example.base.split())[:70]))
        output.line(say("demo.tuned", text=example.tuned))
    output.line()
    total = report.comparison.num_items
    rows = (report.base_right, report.tuned_right, report.merged_right)
    for who, right in zip(("base", "adapter", "merged"), rows, strict=True):
        low, high = _interval(right, total)
        output.line(
            say("demo.score", who=say(f"demo.who_{who}"), right=right, total=total,
                percent=100 * right / total, low=100 * low, high=100 * high)
        )  # fmt: skip
    better = report.comparison.verdict == "better"
    output.line(say("demo.better" if better else "demo.not_better", p=report.comparison.p))
    _show_same(output, report)
    output.line(say("demo.done", seconds=sum(report.seconds.values()), folder=report.folder))
    output.note(say("demo.next", recipe=quote(str(report.folder / "recipe.yaml"))))


def _show_same(output: Output, report: "DemoReport") -> None:
    close = report.same.fidelity
    assert close is not None  # the merged model is always held against the adapter here
    output.line(
        output.text(
            "demo.same",
            verdict=output.text(f"evaluate.verdicts.{report.same.verdict}"),
            margin=f"{report.same.margin * 100:.0f}",
            kl=f"{close.kl:.1g}",
            top1=f"{close.top1:.2%}",
        )
    )


def _interval(right: int, total: int) -> tuple[float, float]:
    """Exact 95 % interval of a share (Clopper and Pearson)."""
    from scipy.stats import binomtest

    found = binomtest(right, total).proportion_ci(0.95)
    return float(found.low), float(found.high)
