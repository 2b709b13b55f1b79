"""Kill -9 at random moments, saving included, and resume: nothing is lost, losses repeat exactly.

    python benchmarks/train/soak_kills.py [--kills 50] [--steps 60] [--seed 0] [--out FILE.json]

A reference run is never interrupted. Other runs of the same recipe are killed again and again: half
of the kills come at a random moment, half while a checkpoint is being written. After each kill the
newest whole checkpoint must be at least the last one that was reported saved; at the end every
loss that any start of the run ever logged must be the same number as the reference's.
The children are forked from a process that has imported torch already, so a start takes a second.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny_model

STEPS = 60


def make_run(folder: Path, name: str, *, steps: int = STEPS):
    """A run with all that a resume must restore: dropout, accumulation, evaluation, epochs."""
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.launch import create_run
    from loracle.jobs.train.options import Options

    recipe = Recipe.model_validate(
        {
            "model": str(folder / "model"),
            "method": "lora",
            "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl")},
            "lora": {"rank": 4, "dropout": 0.1, "targets": "attention"},
            "training": {
                "seq_len": 128, "steps": steps, "effective_batch": 4, "micro_batch": 2,
                "gradient_checkpointing": False, "optimizer": "adamw_torch",
                "learning_rate": 5e-3,
            },
            "save": {"every_steps": 2, "keep": 2, "folder": str(folder / "runs")},
            "evaluation": {"every_steps": 9},
        }
    )  # fmt: skip
    return create_run(recipe, Options(), name=name)


def prepare(folder: Path) -> None:
    tiny_model.make_model(folder / "model")
    tiny_model.write_rows(folder / "train.jsonl", tiny_model.make_rows(150))
    tiny_model.write_rows(folder / "eval.jsonl", tiny_model.make_rows(12, seed=1))


def train(path: str) -> None:
    """The body of a child: what `python -m loracle.jobs.train RUN --resume` does."""
    from loracle.jobs.train.process import main

    log = (Path(path) / "train.log").open("ab")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    raise SystemExit(main([path, "--resume"]))


def start(run):
    child = multiprocessing.get_context("fork").Process(target=train, args=(str(run.path),))
    child.start()
    return child


def losses(run) -> dict[int, set[float]]:
    """Every loss that was ever logged for a step."""
    found: dict[int, set[float]] = {}
    for event in run.events("step"):
        found.setdefault(event["step"], set()).add(event["loss"])
    return found


def kill_at_some_moment(run, child, draw: random.Random, longest: float) -> str | None:
    """SIGKILL at a random moment or in the middle of a save; None if the child ended before."""
    during_save = draw.random() < 0.5
    until = time.monotonic() + (longest if during_save else draw.uniform(0, longest))
    skip = draw.randrange(4)
    writing, was_writing = run.checkpoints / ".writing", False
    while time.monotonic() < until and child.is_alive():
        now_writing = writing.exists()
        if during_save and now_writing and not was_writing:
            if skip == 0:
                time.sleep(draw.uniform(0, 0.02))
                break
            skip -= 1
        was_writing = now_writing
        time.sleep(0.0005)
    if not child.is_alive():
        return None
    moment = "saving" if writing.exists() else "training"
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    return moment


def soak(folder: Path, kills: int, seed: int = 0, *, steps: int = STEPS) -> dict:
    import loracle.jobs.train.loop  # noqa: F401 - torch and trl, once, before the forks
    from loracle.jobs.train.checkpoints import newest_whole

    prepare(folder)
    reference = make_run(folder, "reference", steps=steps)
    began = time.monotonic()
    child = start(reference)
    child.join()
    longest = time.monotonic() - began
    expected = losses(reference)
    assert sorted(expected) == list(range(1, steps + 1)), "the reference did not finish"
    draw = random.Random(seed)
    moments = {"saving": 0, "training": 0}
    lost_checkpoints = different = starts = runs = 0
    while sum(moments.values()) < kills:
        run = make_run(folder, f"killed-{runs}", steps=steps)
        runs += 1
        while run.state() != "finished":
            child = start(run)
            starts += 1
            if sum(moments.values()) < kills:
                moment = kill_at_some_moment(run, child, draw, longest)
            else:
                child.join()
                moment = None
            if moment is None:
                continue
            moments[moment] += 1
            reported = max((event["step"] for event in run.events("saved")), default=0)
            whole, _ = newest_whole(run.checkpoints)
            lost_checkpoints += (whole.step if whole else 0) < reported
        different += sum(seen != expected[step] for step, seen in losses(run).items()) + (
            sorted(losses(run)) != sorted(expected)
        )
    return {
        "kills": sum(moments.values()),
        "while_saving": moments["saving"],
        "runs": runs,
        "starts": starts,
        "steps_per_run": steps,
        "checkpoints_lost": lost_checkpoints,
        "steps_with_another_loss": different,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        result = soak(Path(scratch), options.kills, options.seed, steps=options.steps)
    from loracle.jobs.train.facts import versions

    document = {**result, "seed": options.seed, "versions": versions()}
    print(json.dumps(document, indent=1))
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    raise SystemExit(bool(result["checkpoints_lost"] or result["steps_with_another_loss"]))


if __name__ == "__main__":
    main()
