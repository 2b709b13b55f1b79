"""Both READMEs: every command runs, and every screen is what the command prints today."""

import os
import re
import shlex
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = util.spec_from_file_location("readme_screens", ROOT / "benchmarks" / "readme_screens.py")
screens = util.module_from_spec(spec)
spec.loader.exec_module(screens)

# Commands that need minutes, a card or a bucket, and the test that runs them instead.
ELSEWHERE = {
    "make": ".ci/run",
    "pip": "make test, from the same extras",
    "loracle demo": "tests/jobs/demo",
    "loracle train": "tests/jobs/train",
    "loracle attach": "tests/jobs/train",
    "loracle stop": "tests/jobs/train",
    "loracle runs": "tests/jobs/train",
    "loracle evaluate": "tests/jobs/evaluate",
    "loracle merge": "tests/jobs/merge",
    "loracle chat": "tests/jobs/evaluate",
    "loracle bench": "tests/jobs/test_bench.py",
    "loracle explain-memory": "tests/cli",
}
ANSWERS = {"loracle audit": (0, 1, 2, 3), "loracle plan": (0, 1)}


def commands(name):
    text = (ROOT / name).read_text("utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in
             block.splitlines()]  # fmt: skip
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def key(command):
    words = command.split()
    return " ".join(words[:2]) if words[0] == "loracle" else words[0]


def runnable():
    return [one for one in commands("README.md") if key(one) not in ELSEWHERE
            and "audit --sold" not in one]  # fmt: skip


def test_both_languages_give_the_same_commands():
    assert commands("README.md") == commands("README.zh-CN.md")


def test_commands_named_elsewhere_have_that_test():
    for place in ELSEWHERE.values():
        if place.startswith("tests/"):
            assert (ROOT / place).exists(), place


@pytest.mark.parametrize("command", runnable())
def test_command_runs(command, tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "XDG_CONFIG_HOME": str(tmp_path)}
    engine = ["--engine", "formula"] if key(command) == "loracle plan" else []
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), *engine],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in ANSWERS.get(key(command), (0,)), done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(screens.READMES))
def test_screens_are_real_output(name):
    for command, shown in screens.blocks(ROOT / name):
        assert screens.screen(command, screens.READMES[name]) == shown, command
