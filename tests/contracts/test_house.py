"""Contracts of the house: what an offline command may import, and what the command line offers."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "peft", "trl", "datasets", "httpx", "requests", "aiohttp")


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_help_and_core_import_nothing_heavy():
    code = (
        "import sys, loracle, loracle.cli.app, loracle.domain.plan, loracle.domain.setup;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_commands_are_the_documented_ones():
    from loracle.cli.app import COMMANDS

    assert list(COMMANDS) == [
        "plan", "explain-memory", "audit", "bench", "train", "attach", "stop", "runs", "evaluate",
        "merge", "chat", "demo", "offers", "gpus", "models", "data", "recipe", "claims", "validate",
    ]  # fmt: skip
