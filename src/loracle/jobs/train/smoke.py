"""A rehearsal in two steps: the longest rows, a save, and a start of its own that goes on from it.

It finds what only shows when it runs: a peak above the plan, an optimizer whose state cannot be
loaded again, an evaluation that does not fit. The rehearsal is a run folder inside the run's and
is removed when it went well.
"""

import shutil
import subprocess
import sys
import time
from dataclasses import replace

from loracle.domain.recipe import Recipe
from loracle.errors import RunError
from loracle.jobs.runs import SCHEMA, RunFolder, append_event, write_json, write_status
from loracle.jobs.train.failure import failure_of
from loracle.jobs.train.launch import write_recipe
from loracle.jobs.train.options import Options


def rehearse(run: RunFolder, recipe: Recipe, options: Options) -> None:
    """Run both steps; raises the rehearsal's own error, or RunError E081 where it died."""
    began = time.monotonic()
    rehearsal = RunFolder(run.path / "smoke")
    shutil.rmtree(rehearsal.path, ignore_errors=True)
    rehearsal.checkpoints.mkdir(parents=True)
    quiet = replace(options, smoke=False, rehearsal=True, mirror=None, then=None, reporters=())
    write_json(
        rehearsal.facts,
        {"schema": SCHEMA, "name": rehearsal.name, "options": quiet.document()},
    )
    write_status(rehearsal, state="new", step=0)
    if run.plan.is_file():
        shutil.copy(run.plan, rehearsal.plan)
    for steps in (1, 2):
        write_recipe(rehearsal, _short(recipe, steps))
        _start(rehearsal, resume=steps == 2)
    events = list(rehearsal.events("step"))
    peaks = [int(str(event["reserved_bytes"])) for event in events if "reserved_bytes" in event]
    append_event(
        run,
        "smoke",
        seconds=round(time.monotonic() - began, 1),
        losses=[event["loss"] for event in events],
        reserved_bytes=max(peaks, default=None),
    )
    shutil.rmtree(rehearsal.path)


def _start(rehearsal: RunFolder, *, resume: bool) -> None:
    command = [sys.executable, "-m", "loracle.jobs.train", str(rehearsal.path)]
    with rehearsal.log.open("ab") as log:
        done = subprocess.run(
            [*command, "--resume"] if resume else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode == 0:
        return
    raise failure_of(rehearsal) or RunError(
        "error.train.smoke", code="E081", hint="hint.train.log", log=str(rehearsal.log)
    )


def _short(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many steps, a save and an evaluation at each, nothing copied."""
    training = recipe.training.model_copy(update={"epochs": None, "steps": steps})
    save = recipe.save.model_copy(
        update={"every_steps": 1, "every_minutes": None, "keep": 1, "mirror": None}
    )
    evaluation = recipe.evaluation.model_copy(update={"every_steps": 1})
    return recipe.model_copy(update={"training": training, "save": save, "evaluation": evaluation})
