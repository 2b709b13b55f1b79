"""`loracle stop`: ask a run to save and end."""

import time
from pathlib import Path

import typer

from loracle import words
from loracle.cli.output import Output


def run(
    name: str = typer.Argument(..., metavar="RUN", help=words.text("help.train_flag.run")),
    folder: str = typer.Option("runs", "--folder", help=words.text("help.train_flag.folder")),
    timeout: float = typer.Option(
        0.0, "--wait", metavar="SECONDS", help=words.text("help.train_flag.timeout")
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Ask, and with `--wait` see it done; exit 1 where it did not stop in time."""
    from loracle.jobs.runs import ENDED, open_run
    from loracle.jobs.train.launch import request_stop

    output = Output("quiet" if quiet else "human")
    found = open_run(name, Path(folder))
    request_stop(found)
    output.note(output.text("train.asked", name=found.name))
    until = time.monotonic() + timeout
    while timeout and time.monotonic() < until:
        if found.state() in ENDED:
            step = found.status().get("step", 0)
            output.line(output.text("train.stopping", name=found.name, step=step))
            return
        time.sleep(0.2)
    if timeout:
        raise SystemExit(1)
