"""Two processes under a launcher (gloo, on the CPU) learn what one learns at the same batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loracle.jobs.train.process import train_run

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def recipe(place, tmp_path):
    path = tmp_path / "recipe.yaml"
    document = {
        "model": str(place / "model"), "method": "lora",
        "data": {"train": str(place / "train.jsonl"), "eval": str(place / "eval.jsonl")},
        "lora": {"rank": 4, "targets": "attention"},
        "training": {
            "seq_len": 96, "steps": 4, "effective_batch": 4, "micro_batch": 1,
            "gradient_checkpointing": False, "optimizer": "adamw_torch", "learning_rate": 5e-3,
            "adapter_dtype": "float32",
        },
        "save": {"every_steps": 2, "folder": str(tmp_path / "runs")},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def test_two_processes_give_the_losses_of_one(recipe, tmp_path, losses):
    """The same command under torch's launcher, which `accelerate launch` uses for cards: DDP."""
    from loracle.domain.recipe_text import read_recipe
    from loracle.jobs.runs import RunFolder
    from loracle.jobs.train.launch import create_run
    from loracle.jobs.train.options import Options

    alone = create_run(
        read_recipe(recipe.read_bytes(), str(recipe)).recipe, Options(), name="alone"
    )
    train_run(alone, resume=False)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
         "--standalone", "-m", "loracle", "train", str(recipe), "--name", "two"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    two = RunFolder(tmp_path / "runs" / "two")
    assert two.state() == "finished"
    (started,) = two.events("started")
    assert (started["world_size"], started["grad_accum"]) == (2, 2)
    assert losses(two) == pytest.approx(losses(alone), rel=1e-5)
    evaluated = [[event["eval_loss"] for event in run.events("evaluated")] for run in (two, alone)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-4)
    names = {path.name for path in (two.checkpoints / "step-000004").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "manifest.json"} <= names
