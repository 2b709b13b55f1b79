"""`loracle ... | head`: a closed pipe ends every command quietly, whoever was writing into it."""

import os
import subprocess
import sys

import pytest

# commands that write through each way out: plain lines, rich tables, JSON, typer's help
COMMANDS = [
    ("gpus",),
    ("gpus", "--json"),
    ("models",),
    ("offers",),
    ("plan", "Qwen/Qwen3-8B", "--tokens", "1M", "--offline"),
    ("plan", "Qwen/Qwen3-8B", "--tokens", "1M", "--offline", "--json"),
    ("--help",),
    ("train", "--help"),
    ("--version",),
    (),
]


def closed_pipe():
    """The writing end of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


def into(arguments, tmp_path, *, stdout=None, stderr=subprocess.PIPE):
    env = {key: value for key, value in os.environ.items() if not key.startswith("LORACLE")}
    return subprocess.run(
        [sys.executable, "-m", "loracle", *arguments], cwd=tmp_path, stdout=stdout, stderr=stderr,
        text=True, timeout=120, check=False, env=env | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nobody_reads_stdout(arguments, tmp_path):
    writes = closed_pipe()
    done = into(arguments, tmp_path, stdout=writes)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


def test_nobody_reads_the_error(tmp_path):
    writes = closed_pipe()
    done = into(("gpus", "no-such-card"), tmp_path, stdout=subprocess.PIPE, stderr=writes)
    os.close(writes)
    assert done.returncode == 141


def test_a_reader_that_stays_gets_everything(tmp_path):
    done = into(("gpus",), tmp_path, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 10
