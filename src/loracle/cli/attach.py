"""`loracle attach`: follow a run that goes on without us."""

from pathlib import Path

import typer

from loracle import words
from loracle.cli.output import Output


def run(
    name: str = typer.Argument(..., metavar="RUN", help=words.text("help.train_flag.run")),
    folder: str = typer.Option("runs", "--folder", help=words.text("help.train_flag.folder")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Show a run from its beginning until its end or Ctrl-C."""
    from loracle.cli.train_screen import follow_run
    from loracle.jobs.runs import open_run

    output = Output("quiet" if quiet else "human")
    raise SystemExit(follow_run(output, open_run(name, Path(folder))))
