"""`loracle runs`: every run folder, its state, how far it came, what it cost."""

from pathlib import Path

import typer

from loracle import words
from loracle.cli.output import Column, Output


def run(
    folder: str = typer.Option("runs", "--folder", help=words.text("help.train_flag.folder")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
) -> None:
    """List runs, oldest first."""
    from loracle.jobs.runs import list_runs

    output = Output("json" if as_json else layout)
    found = [(one.name, one.state(), one.status()) for one in list_runs(Path(folder))]
    if output.mode == "json":
        rows = [{"name": name, **status, "state": state} for name, state, status in found]
        output.json({"schema": "loracle.runs/1", "runs": rows})
        return
    if not found:
        output.note(output.text("train.no_runs", folder=folder))
        return
    head = [Column(output.text(f"train.head.{key}")) for key in ("run", "state")]
    head += [Column(output.text("train.head.step"), right=True)]
    head += [Column(output.text("train.head.spent_column"), right=True)]
    output.table(
        head,
        [
            [
                name,
                output.text(f"train.state.{state}"),
                f"{status.get('step', 0)}/{status['steps']}" if "steps" in status else "-",
                f"{float(str(status['spent'])):.2f}"
                if float(str(status.get("spent") or 0))
                else "-",
            ]
            for name, state, status in found
        ],
    )
