"""On a bare install, every command that trains says which extra it needs, and leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "first-plan" / "recipe.yaml"


@pytest.mark.parametrize(
    "command", [("train", str(RECIPE)), ("demo",), ("bench", "Qwen/Qwen3-4B"), ("merge", "runs/x")]
)
def test_one_line_with_the_command(command, tmp_path):
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)\n"
    )
    place = tmp_path / "place"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "loracle", *command],
        cwd=place, env=os.environ | {"PYTHONPATH": str(hide), "LORACLE_LANG": "en"},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error[E051]: `torch` is not installed",
        "hint: pip install 'loracle[train]'",
    ]
    assert list(place.iterdir()) == []
