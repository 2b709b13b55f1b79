"""The short form of `benchmarks/train/soak_kills.py`; the 50 kills are recorded beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "benchmarks" / "train"


def test_three_kills_lose_nothing(tmp_path):
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / "soak_kills.py"), "--kills", "3", "--steps", "16",
         "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text())
    assert result["kills"] == 3
    assert result["checkpoints_lost"] == 0
    assert result["steps_with_another_loss"] == 0


def test_the_recorded_soak_lost_nothing():
    result = json.loads((FOLDER / "results" / "soak_kills.json").read_text())
    assert result["kills"] == 50
    assert result["while_saving"] >= 20
    assert result["checkpoints_lost"] == result["steps_with_another_loss"] == 0
