"""`loracle chat`: base and adapter side by side in the terminal."""

import sys

import typer

from loracle import words
from loracle.cli.output import Output

_help = "chat_flags"


def run(
    target: str = typer.Argument(..., metavar="RUN", help=words.text(f"help.{_help}.target")),
    base: str = typer.Option(None, "--base", help=words.text(f"help.{_help}.base")),
    system: str = typer.Option(None, "--system", help=words.text(f"help.{_help}.system")),
    max_new_tokens: int = typer.Option(
        200, "--max-new-tokens", min=1, help=words.text(f"help.{_help}.max_new_tokens")
    ),
) -> None:
    """Read messages from the terminal or a pipe, one a line, until an empty one."""
    from loracle.jobs.evaluate.subjects import require_stack

    require_stack()
    from loracle.jobs.evaluate.talk import conversation
    from loracle.jobs.evaluate.targets import find_target

    output = Output("human")
    found = find_target(target, base=base)
    with conversation(found, system=system) as talk:
        output.note(output.text("chat.hello", name=found.name))
        while message := _read(output):
            if message == "/reset":
                talk.reset()
                output.note(output.text("chat.reset"))
                continue
            for subject, answer in talk.say(message, max_new_tokens=max_new_tokens):
                output.line(f"{output.text(f'chat.{subject}')}> {answer}")


def _read(output: Output) -> str:
    """The next message; empty at the end."""
    if sys.stdin.isatty():
        sys.stderr.write(output.text("chat.prompt"))
        sys.stderr.flush()
    line = sys.stdin.readline().strip()
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # another encoding
