"""Start a run as a process of its own, follow it, ask it to stop, go on with it.

The process gets a session of its own and writes to files only, so it survives a closed terminal,
a lost SSH connection and whoever started it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from loracle.domain.money import Money
from loracle.domain.recipe import Recipe
from loracle.domain.recipe_text import read_recipe
from loracle.errors import InputError, RunError
from loracle.jobs.runs import (
    ENDED,
    SCHEMA,
    RunFolder,
    new_run,
    now,
    process_start,
    write_json,
    write_status,
    write_whole,
)
from loracle.jobs.train.facts import recipe_changes
from loracle.jobs.train.inputs import check_inputs
from loracle.jobs.train.options import Options
from loracle.jobs.train.world import from_main

POLL_SECONDS = 0.2


def create_run(
    recipe: Recipe, options: Options, *, name: str | None = None, plan: str | None = None
) -> RunFolder:
    """A run folder with the recipe, the plan's text and the options; nothing is started.

    Raises what `check_recipe`, `check_inputs` and `new_run` raise.
    """
    check_recipe(recipe)
    check_inputs(recipe)
    run = new_run(Path(recipe.save.folder), name, recipe.model, recipe.method)
    write_recipe(run, recipe)
    if plan is not None:
        write_whole(run.plan, plan.encode())
    write_json(
        run.facts,
        {"schema": SCHEMA, "name": run.name, "created": now(), "options": options.document()},
    )
    write_status(run, state="new", step=0)
    return run


def check_recipe(recipe: Recipe) -> None:
    """Raises InputError E013 for a recipe that can be planned and not trained."""
    if recipe.stack != "loracle":
        raise InputError(
            "error.train.stack", code="E013", hint="hint.train.stack", stack=recipe.stack
        )
    if recipe.data.train is None:
        raise InputError("error.train.no_data", code="E013", hint="hint.train.no_data")


def write_recipe(run: RunFolder, recipe: Recipe) -> None:
    """The resolved recipe, with paths that hold from any working directory."""
    import yaml

    document = recipe.model_dump(mode="json", exclude_none=True)
    data = document["data"]
    for key in ("train", "eval"):
        if key in data:
            data[key] = str(Path(data[key]).expanduser().absolute())
    if Path(recipe.model).expanduser().exists():
        document["model"] = str(Path(recipe.model).expanduser().absolute())
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    write_whole(run.recipe, text.encode())


def start(run: RunFolder, *, resume: bool = False) -> int:
    """Start the training process, detached; returns its number."""
    command = [sys.executable, "-m", "loracle.jobs.train", str(run.path)]
    with run.log.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--resume"] if resume else command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    mark_starting(run, process.pid)
    return process.pid


def mark_starting(run: RunFolder, pid: int) -> None:
    """Say so before the process can: whoever follows must not see how the last start ended."""
    write_status(
        run,
        state="starting",
        pid=pid,
        host=os.uname().nodename,
        process_start=process_start(pid),
    )


def prepare_resume(
    run: RunFolder, recipe: Recipe | None = None, *, options: Options, changed_ok: bool = False
) -> None:
    """Make a run ready to go on; a changed recipe is refused unless `changed_ok`.

    Raises RunError: E062 the run is still going, or has finished, E067 what differs in the recipe;
    and what `check_recipe` and `check_inputs` raise.
    """
    state = run.state()
    if state in ("starting", "running", "finished"):
        raise RunError(f"error.train.{state}", code="E062", name=run.name)
    before = read_recipe(run.recipe.read_bytes(), str(run.recipe)).recipe
    check_inputs(recipe or before)
    if recipe is not None:
        check_recipe(recipe)
        changes = recipe_changes(before.model_dump(mode="json"), _as_stored(recipe))
        if changes and not changed_ok:
            raise RunError(
                "error.train.recipe_changed", code="E067", hint="hint.train.recipe_changed",
                name=run.name, changes="; ".join(changes),
            )  # fmt: skip
        write_recipe(run, recipe)
    facts = run.read_facts()
    write_json(run.facts, facts | {"options": options.document() | {"changed_ok": changed_ok}})
    run.stop_request.unlink(missing_ok=True)


def price_of_plan(text: str) -> Money | None:
    """What an hour costs by the plan's recommended offer; None where the plan has no price.

    A price by the month is spread over its hours. Raises what `read_plan` raises.
    """
    from loracle.domain.offer import HOURS_IN_TERM
    from loracle.planner.plan_json import read_plan

    plan = read_plan(text)
    cost = plan.candidates[plan.best].cost if plan.best is not None else None
    if cost is None or cost.period not in HOURS_IN_TERM:
        return None
    return Money(cost.unit_price.amount / HOURS_IN_TERM[cost.period], cost.unit_price.currency)


def request_stop(run: RunFolder) -> None:
    """Ask the run to save and stop. Raises RunError E062 where it does not run."""
    if run.state() not in ("starting", "running"):
        raise RunError("error.train.not_running", code="E062", name=run.name, state=run.state())
    run.stop_request.touch()


def follow(
    run: RunFolder, *, pid: int | None = None, after: int = 0
) -> Iterator[dict[str, object] | None]:
    """Every event from byte `after` on, then new ones as they come, until the run has ended.

    Yields None when there was nothing new for a moment. `pid` is a child of this process, whose
    end is noticed even if it died before it wrote anything.
    """
    offset = after
    while True:
        ended = run.state() in (*ENDED, "lost") or (pid is not None and _is_over(pid))
        found = False
        for event, position in _events_from(run, offset):
            found, offset = True, position
            yield event
        if ended:
            return
        if not found:
            yield None
            time.sleep(POLL_SECONDS)


def shared_run(run: RunFolder | None) -> RunFolder:
    """Under a distributed launcher: the first process's run folder, told to all."""
    return RunFolder(Path(from_main(lambda: str(run.path) if run is not None else "")))


def is_launched() -> bool:
    """Whether a distributed launcher started this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _as_stored(recipe: Recipe) -> Recipe:
    """The recipe with the paths that `write_recipe` would write."""
    data = recipe.data.model_copy(
        update={
            key: str(Path(value).expanduser().absolute())
            for key in ("train", "eval")
            if (value := getattr(recipe.data, key)) is not None
        }
    )
    path = Path(recipe.model).expanduser()
    model = str(path.absolute()) if path.exists() else recipe.model
    return recipe.model_copy(update={"data": data, "model": model})


def _events_from(run: RunFolder, offset: int) -> Iterator[tuple[dict[str, object], int]]:
    import json

    if not run.events_file.is_file():
        return
    with run.events_file.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                yield json.loads(line), offset
            except json.JSONDecodeError:  # torn by a crash
                continue


def _is_over(pid: int) -> bool:
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return done == pid
