"""Running the command as a person does: arguments in; exit code, stdout and stderr out."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

ON_15_JANUARY_2026 = "1768435200"


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(tmp_path):
    """Run `loracle` in a process of its own, in an empty folder that is also its home."""

    def run(*arguments, **env):
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("LC_", "LANG", "LORACLE", "XDG", "HF_", "COLUMNS", "NO_COLOR"))
        }
        clean |= {
            "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"), "SOURCE_DATE_EPOCH": ON_15_JANUARY_2026,
            "COLUMNS": "120", "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", **env,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "loracle", *arguments],
            capture_output=True, text=True, encoding="utf-8", cwd=tmp_path, env=clean, timeout=180,
            check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    return run
