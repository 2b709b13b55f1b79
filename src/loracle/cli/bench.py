"""`loracle bench`: real training steps of a recipe's shape on this machine, against the plan."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from pathlib import Path

    from loracle.domain.gpu import Gpu
    from loracle.domain.plan import Candidate
    from loracle.jobs.bench import Bench

_help = "help.bench_option."


def run(
    target: str = typer.Argument(..., metavar="RECIPE|MODEL", help=words.text(f"{_help}recipe")),
    steps: int = typer.Option(8, "--steps", min=1, help=words.text(f"{_help}steps")),
    seconds: str = typer.Option("120s", "--seconds", help=words.text(f"{_help}seconds")),
    micro_batch: int = typer.Option(None, "--micro-batch", help=words.text(f"{_help}micro_batch")),
    price: str = typer.Option(None, "--price", help=words.text(f"{_help}price")),
    out: str = typer.Option(None, "--out", metavar="FILE", help=words.text(f"{_help}out")),
    assignments: list[str] = typer.Option(  # noqa: B008
        [],
        "--set",
        metavar="KEY=VALUE",
        help=words.text("help.recipe_app.set"),  # noqa: B008
    ),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Bench, compare with the plan, and keep the run for the planner."""
    from datetime import UTC, datetime
    from pathlib import Path

    from loracle.catalog.measured import run_document, write_run
    from loracle.catalog.user_runs import user_runs_file
    from loracle.errors import MissingExtra
    from loracle.jobs.bench import bench, measured_run
    from loracle.jobs.bench_card import card_here, sampler
    from loracle.jobs.libraries import missing_library
    from loracle.units import parse_seconds

    if (missing := missing_library()) is not None:
        raise MissingExtra("train", missing)
    output = Output("json" if as_json else "quiet" if quiet else layout)
    path = Path(out) if out else user_runs_file()
    _make_folder(path)  # before minutes are spent
    gpu = card_here()
    candidate = _candidate(target, gpu, micro_batch, assignments)
    outcome = bench(candidate.setup, steps=steps, seconds=parse_seconds(seconds), sample=sampler())
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    row = measured_run(outcome, gpu.id, run_id=f"bench-{now}")
    write_run(row, path)
    if output.mode == "json":
        output.json(run_document(row) | {"against_plan": _against(outcome, candidate)})
    else:
        _show(outcome, candidate, gpu, price, output)
        output.note(output.text("bench.saved", path=str(path)))
    if not outcome.fits:
        raise typer.Exit(1)


def _make_folder(path: "Path") -> None:
    """Raises InputError E013 for a place that cannot be written to."""
    import os

    from loracle.errors import InputError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("error.unwritable", code="E013", path=str(path), reason=reason) from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        reason = str(path.parent)
        raise InputError("error.unwritable", code="E013", path=str(path), reason=reason)


def _candidate(
    target: str, gpu: "Gpu", micro_batch: int | None, assignments: list[str]
) -> "Candidate":
    """The plan's candidate for one card of this kind."""
    from loracle.cli.recipe_file import overrides_of, read_recipe_file
    from loracle.cli.today import today
    from loracle.domain.recipe_text import parse_recipe
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    overrides: dict[str, object] = {"rent.gpus": [gpu.id], "rent.max_gpus": 1}
    if micro_batch:
        overrides["training.micro_batch"] = micro_batch
    overrides |= overrides_of(assignments)
    if target.lower().endswith((".yaml", ".yml")):
        recipe = read_recipe_file(target, overrides).recipe
    else:
        recipe = parse_recipe("", "command line", {"model": target, **overrides})
    plan = make_plan(recipe, gather(recipe, today=today()))
    return plan.candidates[plan.best or 0]


def _against(outcome: "Bench", candidate: "Candidate") -> dict[str, object]:
    speed = candidate.speed
    return {
        "planned_reserved_bytes": candidate.memory.reserved_bytes.likely,
        "planned_tokens_per_s": speed.tokens_per_s.likely if speed else None,
        "planned_step_s": speed.step_seconds.likely if speed else None,
        "tokens_per_joule": outcome.tokens_per_joule,
        "celsius": outcome.celsius,
    }


def _show(
    outcome: "Bench", candidate: "Candidate", gpu: "Gpu", price: str | None, output: Output
) -> None:
    from loracle.units import gib

    setup, speed = outcome.setup, candidate.speed
    if not outcome.fits:
        planned = gib(candidate.memory.reserved_bytes.likely)
        output.line(output.text("bench.out_of_memory", micro_batch=setup.micro_batch,
                                planned=planned))  # fmt: skip
        return
    if output.mode == "quiet":
        output.line(f"{gpu.name}: {outcome.tokens_per_s:,.0f} tokens/s")
        return
    output.line(output.text(
        "bench.title", model=setup.model.id, method=setup.method, seq_len=f"{setup.seq_len:,}",
        micro_batch=setup.micro_batch, gpu=gpu.name,
    ))  # fmt: skip
    planned_bytes = candidate.memory.reserved_bytes.likely
    rows = [
        _row(output, "model", outcome.model_bytes, candidate.memory.model_bytes, gib),
        _row(output, "peak", outcome.peak_reserved_bytes, planned_bytes, gib),
        _row(output, "tokens", outcome.tokens_per_s,
             speed.tokens_per_s.likely if speed else None, lambda value: f"{value:,.0f}"),
        _row(output, "step", outcome.seconds,
             speed.step_seconds.likely if speed else None, lambda value: f"{value:,.2f} s"),
        _row(output, "watts", outcome.watts, None, lambda value: f"{value:,.0f} W"),
        _row(output, "celsius", outcome.celsius, None, lambda value: f"{value:.0f} °C"),
        _row(output, "joule", outcome.tokens_per_joule, None, lambda value: f"{value:,.2f}"),
        _money_row(output, outcome, price),
    ]  # fmt: skip
    heads = ("", "bench.measured", "bench.plan", "bench.difference")
    columns = [Column(output.text(one) if one else "", right=bool(one)) for one in heads]
    output.table(columns, [row for row in rows if row])
    output.note(output.text("bench.stack_note"))


def _row(output: Output, name: str, found: float | None, planned: float | None, text):  # noqa: ANN001, ANN202
    """One line of the comparison; nothing where it was not measured."""
    if found is None:
        return None
    difference = f"{found / planned - 1:+.0%}" if planned else ""
    label = output.text(f"bench.{name}")
    return (label, text(found), text(planned) if planned else "", difference)


def _money_row(output: Output, outcome: "Bench", price: str | None):  # noqa: ANN202
    """Money for a million tokens, where the price an hour was given."""
    from loracle.domain.offer import HOURS_IN_TERM
    from loracle.units import money, parse_money

    if price is None:
        return None
    amount, currency, period = parse_money(price)
    hourly = float(amount) / HOURS_IN_TERM.get(period, 1)
    cost = outcome.price_per_million(hourly)
    return (output.text("bench.money"), money(cost, currency), "", "") if cost else None
