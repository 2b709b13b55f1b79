"""`loracle evaluate`: is the tuned model better, and is the merged one still it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.jobs.evaluate.result import Spec
    from loracle.jobs.evaluate.subjects import Subject
    from loracle.jobs.evaluate.targets import Target

_help = "evaluate_flags"


def run(
    target: str = typer.Argument(..., metavar="RUN", help=words.text(f"help.{_help}.target")),
    data: str = typer.Option(None, "--data", help=words.text(f"help.{_help}.data")),
    train_data: str = typer.Option(
        None, "--train-data", help=words.text(f"help.{_help}.train_data")
    ),
    base: str = typer.Option(None, "--base", help=words.text(f"help.{_help}.base")),
    merged: list[Path] = typer.Option(  # noqa: B008
        [],
        "--merged",
        help=words.text(f"help.{_help}.merged"),  # noqa: B008
    ),
    against: str = typer.Option(None, "--against", help=words.text(f"help.{_help}.against")),
    metric: str = typer.Option(None, "--metric", help=words.text(f"help.{_help}.metric")),
    max_new_tokens: int = typer.Option(
        None, "--max-new-tokens", min=1, help=words.text(f"help.{_help}.max_new_tokens")
    ),
    batch: int = typer.Option(None, "--batch", min=1, help=words.text(f"help.{_help}.batch")),
    margin: float = typer.Option(None, "--margin", help=words.text(f"help.{_help}.margin")),
    max_items: int = typer.Option(
        None, "--max-items", min=1, help=words.text(f"help.{_help}.max_items")
    ),
    quant: str = typer.Option(None, "--quant", help=words.text(f"help.{_help}.quant")),
    samples: int = typer.Option(0, "--samples", min=0, help=words.text(f"help.{_help}.samples")),
    tasks: str = typer.Option(None, "--tasks", help=words.text(f"help.{_help}.tasks")),
    limit: int = typer.Option(None, "--limit", min=1, help=words.text(f"help.{_help}.limit")),
    out: Path = typer.Option(None, "--out", "-o", help=words.text(f"help.{_help}.out")),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Compare; exit 0 when the tuned model is better, 1 where it is not or that cannot be told."""
    from loracle.jobs.evaluate.subjects import require_stack

    require_stack()
    from loracle.cli.evaluate_screen import show
    from loracle.jobs.evaluate.evaluate import evaluate
    from loracle.jobs.evaluate.prompts import asks_the_same
    from loracle.jobs.evaluate.subjects import choose_device
    from loracle.jobs.evaluate.targets import find_target

    output = Output("json" if as_json else "quiet" if quiet else form)
    _refuse_flags(quant=quant, margin=margin, form=form)
    named = [one.strip() for one in (tasks or "").split(",") if one.strip()]
    if named:
        from loracle.jobs.evaluate.tasks import check_tasks

        check_tasks(named)
    found = find_target(target, base=base, quant=quant)
    device = choose_device()
    subjects = _subjects(found, merged, against, device)
    spec = _spec(
        found, data=data, train_data=train_data, metric=metric, max_new_tokens=max_new_tokens,
        batch=batch, margin=margin, max_items=max_items,
    )  # fmt: skip
    tokenizer = found.tokenizer or found.base
    folder = out or (found.run.path if found.run else Path.cwd()) / "evaluation"
    try:
        evaluation = evaluate(
            subjects,
            spec,
            folder,
            device=device,
            tokenizer_source=tokenizer,
            same_prompts=asks_the_same(found, tokenizer),
            progress=_progress(output),
        )
    except KeyboardInterrupt:
        output.note(output.text("evaluate.interrupted", path=folder / "items"))
        raise
    document = evaluation.document()
    if named:
        from loracle.jobs.evaluate.tasks import run_tasks

        document["tasks"] = run_tasks(
            subjects, named, folder, limit=limit, device=device,
            tokenizer_source=tokenizer, batch=spec.batch,
        )  # fmt: skip
    if output.mode == "json":
        output.json(document)
    else:
        show(output, found.name, evaluation, folder, samples, document.get("tasks"))
    raise SystemExit(0 if _is_better(document) else 1)


def _refuse_flags(*, quant: str | None, margin: float | None, form: str) -> None:
    """Values that no later step would refuse."""
    from loracle.cli.output import MODES
    from loracle.errors import InputError

    for flag, value, known in (
        ("--quant", quant, ("nf4", "nf4-double", "int8")),
        ("--format", form, MODES),
    ):
        if value is not None and value not in known:
            raise InputError(
                "error.merge.flag", code="E011", flag=flag, value=value, known=", ".join(known)
            )
    if margin is not None and not 0 < margin < 1:
        raise InputError("error.evaluate.margin", code="E011", margin=margin)


def _subjects(
    found: "Target", merged: list[Path], against: str | None, device: object
) -> list["Subject"]:
    """The subjects of a target, with merged models given and found, and another run's adapter."""
    from dataclasses import replace

    from loracle.errors import InputError
    from loracle.jobs.evaluate.subjects import compute_dtype
    from loracle.jobs.evaluate.targets import check_base, find_target, merged_id, subjects_of

    if found.adapter is not None and Path(found.base).is_dir():
        check_base(found, Path(found.base))
    dtype = compute_dtype(device, found.dtype)  # type: ignore[arg-type]
    folders = {merged_id(one): one for one in (*found.merged_folders(), *merged)}
    subjects = subjects_of(found, dtype=dtype, merged=list(folders.values()))
    if against is not None:
        other = find_target(against)
        subjects += [
            replace(one, id="lora")
            for one in subjects_of(other, dtype=dtype, merged=[])
            if one.adapter is not None
        ]
    if len(subjects) < 2:
        raise InputError("error.evaluate.nothing_to_compare", code="E013", path=found.base)
    return subjects


def _spec(found: "Target", **given: object) -> "Spec":
    """Flags over the run's recipe over defaults."""
    from loracle.errors import InputError
    from loracle.jobs.evaluate.metrics import METRICS
    from loracle.jobs.evaluate.result import Spec

    recipe = found.recipe
    values: dict[str, object] = {}
    if recipe is not None:
        settings = recipe.evaluation
        values = {
            "data": recipe.data.eval, "train_data": recipe.data.train,
            "format": recipe.data.format, "train_on": recipe.data.train_on,
            "metric": settings.metric, "max_new_tokens": settings.max_new_tokens,
            "batch": settings.batch, "margin": settings.margin,
            "max_tokens": recipe.training.seq_len,
        }  # fmt: skip
        if given.get("data") is not None:
            values["format"] = "auto"
    values |= given_only(given)
    values = given_only(values)
    if "data" not in values:
        raise InputError("error.evaluate.no_data", code="E013", hint="hint.evaluate.data")
    if values.get("metric", "auto") not in (*METRICS, "auto", "loss"):
        raise InputError(
            "error.evaluate.metric", code="E011", metric=values["metric"],
            known=", ".join(("auto", *METRICS, "loss")),
        )  # fmt: skip
    return Spec(**values)  # type: ignore[arg-type]


def given_only(values: dict[str, object]) -> dict[str, object]:
    """Without what is None."""
    return {key: value for key, value in values.items() if value is not None}


def _progress(output: Output):  # type: ignore[no-untyped-def]  # noqa: ANN202
    """A line on stderr at most every ten seconds."""
    last = [time.monotonic()]

    def tell(subject: str, done: int, total: int) -> None:
        if output.mode == "human" and (done == total or time.monotonic() - last[0] > 10):
            last[0] = time.monotonic()
            output.note(output.text("evaluate.running", id=subject, done=done, total=total))

    return tell


def _is_better(document: dict[str, object]) -> bool:
    """Whether the deciding metric went up, and no merged model is another one."""
    comparisons, same = document["comparisons"], document["equivalence"]
    assert isinstance(comparisons, dict)
    assert isinstance(same, dict)
    tuned = comparisons.get("base>adapter") or comparisons.get("base>tuned")
    if tuned is None or any(one["verdict"] == "different" for one in same.values()):
        return False
    return bool(tuned[document["decides"]]["verdict"] == "better")
