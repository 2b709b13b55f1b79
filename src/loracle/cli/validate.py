"""`loracle validate`: measured runs beside our predictions, and how far off we are."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Column, Output
from loracle.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loracle.domain.gpu import Gpu
    from loracle.planner.engines import Engine
    from loracle.planner.validation import Comparison

ENGINES = ("formula", "dryrun")


def run(
    runs: str = typer.Argument(None, help=words.text("help.validate_flag.runs")),
    engine: str = typer.Option("formula", "--engine", help=words.text("help.validate_flag.engine")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Predicted and measured for each run of a file (or the shipped ones), and a summary."""
    from loracle.catalog.measured import read_runs, setup_of, shipped_runs
    from loracle.planner.validation import compare, document, summary

    output = Output("json" if as_json else "quiet" if quiet else form)
    rows = read_runs(runs) if runs else shipped_runs()
    found = compare(rows, setup_of, _gpu_of, _engine(engine))
    if output.mode == "json":
        output.json(document(found, engine))
        return
    if output.mode == "quiet":
        output.line(_one_line(output, summary(found)))
        return
    _table(output, found)
    _summary(output, summary(found))


def _engine(name: str) -> "Engine":
    from loracle.planner.engines import dry_run_engine, formula_engine

    if name not in ENGINES:
        raise InputError("error.validate.engine", hint="hint.validate.engine", engine=name)
    return formula_engine if name == "formula" else dry_run_engine


def _gpu_of(name: str) -> "Gpu | None":
    from loracle.catalog.gpus import find_gpu
    from loracle.errors import CatalogError

    try:
        return find_gpu(name)
    except CatalogError:
        return None  # memory needs no card; the row says that speed was left out


def _table(output: Output, found: "list[Comparison]") -> None:
    columns = [
        Column(output.text("validate.column.run")),
        Column(output.text("validate.column.model")),
        *(
            Column(output.text(f"validate.column.{name}"), right=True)
            for name in ("allocated", "reserved", "device", "speed")
        ),
        Column(output.text("validate.column.fit")),
    ]
    output.table(columns, [_row(output, one) for one in found])
    output.line()
    output.line(output.text("validate.legend"))
    for one in found:
        if one.skipped is not None:
            reason = output.text(one.skipped.message, **one.skipped.values)
            output.note(output.text("validate.skipped", run=one.run.id, reason=reason))


def _row(output: Output, one: "Comparison") -> list[str]:
    from loracle.units import GIB

    cells = [one.run.id, one.run.hub_id.rsplit("/", 1)[-1]]
    for name in ("allocated", "reserved", "device"):
        pair = one.memory.get(name)
        cells.append("-" if pair is None else f"{pair.measured / GIB:.2f} {pair.error_pct:+.1f}%")
    speed = one.speed
    mark = "" if one.steady else "~"
    cells.append("-" if speed is None else f"{mark}{speed.measured:.0f} {speed.error_pct:+.0f}%")
    cells.append("-" if one.verdict is None else output.text(f"validate.verdict.{one.verdict}"))
    return cells


def _summary(output: Output, figures: "Mapping[str, Mapping[str, Mapping[str, object]]]") -> None:
    memory = figures["memory"]
    for name in ("allocated", "reserved", "device"):
        if memory[name]["n"]:
            output.line(output.text(f"validate.summary.{name}", **memory[name]))
    output.line(output.text("validate.summary.fit", **memory["fit"]))
    speed = figures["speed"]
    if speed["n"]:
        output.line(output.text("validate.summary.speed", **speed))


def _one_line(output: Output, figures: "Mapping[str, Mapping[str, Mapping[str, object]]]") -> str:
    memory, speed = figures["memory"], figures["speed"]
    return output.text(
        "validate.one_line",
        allocated=memory["allocated"]["mean_abs_pct"],
        reserved=memory["reserved"]["mean_abs_pct"],
        wrong=memory["fit"]["wrong"],
        speed=speed["mean_abs_pct"],
    )
