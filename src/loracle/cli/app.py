"""The `loracle` command: finds the file of the subcommand that was asked for, and runs it.

Each command lives in a file of its own, `loracle.cli.<name>`, whose `run` function typer reads.
Only the asked-for file is imported, so help and completion stay quick. Errors of the tree
become one line each and an exit code here, and nowhere else.
"""

import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from loracle import __version__, words
from loracle.errors import LoracleError

COMMANDS: dict[str, str] = {
    # name: module under loracle.cli, in the order of a user's day
    "plan": "plan",
    "explain-memory": "explain_memory",
    "audit": "audit",
    "bench": "bench",
    "train": "train",
    "attach": "attach",
    "stop": "stop",
    "runs": "runs",
    "evaluate": "evaluate",
    "merge": "merge",
    "chat": "chat",
    "demo": "demo",
    "offers": "offers",
    "gpus": "gpus",
    "models": "models",
    "data": "data",
    "recipe": "recipe",
    "claims": "claims",
    "validate": "validate",
}


class _Commands(TyperGroup):
    """A group that imports a command's file when it is called; its help needs none of them."""

    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    # typer vendors click, whose command type has no public name
    def get_command(self, ctx: object, cmd_name: str) -> object | None:
        name = cmd_name.replace("_", "-")
        if name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(name=name, help=words.text(f"help.{name}"))
        module = import_module(f"loracle.cli.{COMMANDS[name]}")
        if hasattr(module, "app"):
            command = typer.main.get_command(module.app)
        else:
            single = typer.Typer(add_completion=False)
            single.command(help=words.text(f"help.{name}"))(module.run)
            command = typer.main.get_command(single)
        command.name = name
        return command


app = typer.Typer(
    cls=_Commands,
    help=words.text("help.loracle"),
    no_args_is_help=False,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    lang: str = typer.Option(None, "--lang", help=words.text("help.lang")),
    version: bool = typer.Option(False, "--version", help=words.text("help.version")),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(words.text("screen.start"))


def _lift_language(arguments: list[str]) -> list[str]:
    """Let `--lang` stand anywhere: move it in front, where the root command reads it."""
    lifted: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        if arguments[index] == "--lang" and index + 1 < len(arguments):
            lifted += arguments[index : index + 2]
            index += 2
        elif arguments[index].startswith("--lang="):
            lifted.append(arguments[index])
            index += 1
        else:
            rest.append(arguments[index])
            index += 1
    return lifted + rest


def main() -> None:
    """Entry point: run a command, turn errors of the tree into a line and an exit code."""
    import gc
    import os

    from loracle.cli.output import Output
    from loracle.cli.pipe import watched_streams

    # pydantic would look through every installed distribution for plugins; we have none
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(50_000, 20, 20)  # imports make objects that stay: collecting early is in vain
    arguments = _lift_language(sys.argv[1:])
    mode = "json" if "--json" in arguments else "human"
    with watched_streams():
        try:
            app(args=arguments)
        except LoracleError as error:
            Output(mode).fail(error)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
