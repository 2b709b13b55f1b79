"""`loracle train`: start a run or go on with one, and follow it until Ctrl-C or its end."""

from typing import TYPE_CHECKING, NamedTuple

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.domain.money import Money
    from loracle.domain.recipe import Recipe
    from loracle.jobs.runs import RunFolder
    from loracle.jobs.train.options import Options


class _Money(NamedTuple):
    """What the flags say of money, each in its own currency."""

    per_hour: "Money | None"
    budget: "Money | None"


def run(
    recipe: str = typer.Argument(
        None, metavar="[RECIPE]", help=words.text("help.train_flag.recipe")
    ),
    name: str = typer.Option(None, "--name", help=words.text("help.train_flag.name")),
    resume: str = typer.Option(
        None, "--resume", metavar="RUN", help=words.text("help.train_flag.resume")
    ),
    plan: str = typer.Option(
        None, "--plan", metavar="FILE", help=words.text("help.train_flag.plan")
    ),
    foreground: bool = typer.Option(
        False, "--foreground", help=words.text("help.train_flag.foreground")
    ),
    detach: bool = typer.Option(False, "--detach", "-d", help=words.text("help.train_flag.detach")),
    budget: str = typer.Option(None, "--budget", help=words.text("help.train_flag.budget")),
    price: str = typer.Option(None, "--price", help=words.text("help.train_flag.price")),
    mirror: str = typer.Option(
        None, "--mirror", metavar="URL", help=words.text("help.train_flag.mirror")
    ),
    on_oom: str = typer.Option(None, "--on-oom", help=words.text("help.train_flag.on_oom")),
    reporters: list[str] = typer.Option(  # noqa: B008
        [],
        "--report-to",
        help=words.text("help.train_flag.reporter"),  # noqa: B008
    ),
    then: str = typer.Option(
        None, "--then", metavar="CMD", help=words.text("help.train_flag.then")
    ),
    assignments: list[str] = typer.Option(  # noqa: B008
        [],
        "--set",
        metavar="KEY=VALUE",
        help=words.text("help.train_flag.set"),  # noqa: B008
    ),
    allow_changed: bool = typer.Option(
        False, "--allow-changed", help=words.text("help.train_flag.allow_changed")
    ),
    smoke: bool = typer.Option(False, "--smoke", help=words.text("help.train_flag.smoke")),
    no_merge: bool = typer.Option(False, "--no-merge", help=words.text("help.train_flag.no_merge")),
    yes: bool = typer.Option(False, "-y", "--yes", help=words.text("help.train_flag.yes")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Train; exit 0 when finished or stopped as asked, 1 where a run ended for another reason."""
    from pathlib import Path

    from loracle.errors import InputError, MissingExtra
    from loracle.jobs.libraries import missing_library
    from loracle.jobs.train.launch import is_launched, start
    from loracle.jobs.train.reporters import check_reporters

    output = Output("json" if as_json else "quiet" if quiet else "human")
    given = {
        "on_oom": on_oom, "reporters": tuple(reporters) or None, "mirror": mirror, "then": then,
        "smoke": smoke or None, "merges": False if no_merge else None,
    }  # fmt: skip
    money = _Money(_price(price), _budget(budget))
    if on_oom not in (None, "stop", "adapt"):
        raise InputError("error.train.on_oom", code="E011", value=on_oom)
    if recipe is None and resume is None:
        raise InputError("error.missing_file", code="E013", path="recipe.yaml")
    wanted = _recipe(recipe, assignments) if recipe is not None else None
    if (missing := missing_library()) is not None:
        raise MissingExtra("train", missing)
    check_reporters(reporters)
    if then is not None and not yes and mirror is None and (not wanted or not wanted.save.mirror):
        raise InputError("error.train.then_alone", code="E013", hint="hint.train.then_alone")
    made: RunFolder | None = None
    if not is_launched() or _is_first():
        if resume is not None:
            made = _resumed(resume, wanted, given, money, allow_changed)
        else:
            assert wanted is not None
            text = Path(plan).read_text("utf-8") if plan else None
            made = _created(wanted, given, money, name, text)
    if foreground or is_launched():
        raise SystemExit(_in_this_process(output, made, resume is not None))
    assert made is not None
    after = made.events_file.stat().st_size if made.events_file.is_file() else 0
    pid = start(made, resume=resume is not None)
    if detach:
        _say_started(output, made)
        return
    from loracle.cli.train_screen import follow_run

    _say_started(output, made)
    raise SystemExit(follow_run(output, made, pid=pid, after=after))


def _recipe(path: str, assignments: list[str]) -> "Recipe":
    from loracle.cli.recipe_file import overrides_of, read_recipe_file

    return read_recipe_file(path, overrides_of(assignments)).recipe


def _created(
    recipe: "Recipe", given: dict[str, object], money: _Money, name: str | None, plan: str | None
) -> "RunFolder":
    from loracle.jobs.train.launch import create_run, price_of_plan

    if plan is not None and money.per_hour is None:
        money = money._replace(per_hour=price_of_plan(plan))
    return create_run(recipe, _options({}, given, money), name=name, plan=plan)


def _resumed(
    text: str,
    recipe: "Recipe | None",
    given: dict[str, object],
    money: _Money,
    allow_changed: bool,
) -> "RunFolder":
    from pathlib import Path

    from loracle.jobs.runs import open_run
    from loracle.jobs.train.launch import prepare_resume
    from loracle.jobs.train.mirror import fetch_run

    parent = Path(recipe.save.folder if recipe else "runs")
    run = fetch_run(text, parent) if "://" in text else open_run(text, parent)
    stored = run.read_facts().get("options")
    options = _options(stored if isinstance(stored, dict) else {}, given, money)
    prepare_resume(run, recipe, options=options, changed_ok=allow_changed)
    return run


def _options(stored: dict[str, object], given: dict[str, object], money: _Money) -> "Options":
    from loracle.jobs.train.budget import agreed_money
    from loracle.jobs.train.options import Options

    asked = {key: value for key, value in given.items() if value is not None}
    agreed = agreed_money(money.per_hour, money.budget, stored)
    return Options.of({**stored, **asked, **agreed, "changed_ok": False})


def _price(text: str | None) -> "Money | None":
    """What an hour costs; a price by the month is spread over its hours."""
    from decimal import Decimal

    from loracle.domain.money import Money
    from loracle.domain.offer import HOURS_IN_TERM
    from loracle.errors import InputError
    from loracle.units import parse_money

    if text is None:
        return None
    amount, currency, period = parse_money(text)
    if period not in HOURS_IN_TERM:
        raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text)
    return Money(amount / Decimal(HOURS_IN_TERM[period]), currency)


def _budget(text: str | None) -> "Money | None":
    from loracle.domain.money import Money
    from loracle.units import parse_money

    if text is None:
        return None
    amount, currency, _ = parse_money(text)
    return Money(amount, currency)


def _in_this_process(output: Output, made: "RunFolder | None", resume: bool) -> int:
    from loracle.cli.foreground import run_here
    from loracle.jobs.train.launch import is_launched, shared_run

    run = shared_run(made) if is_launched() else made
    assert run is not None
    return run_here(output, run, resume=resume)


def _is_first() -> bool:
    from loracle.jobs.train.world import is_main

    return is_main()


def _say_started(output: Output, run: "RunFolder") -> None:
    if output.mode == "json":
        output.json({"schema": "loracle.run/1", "name": run.name, "path": str(run.path)})
        return
    output.line(output.text("train.started", name=run.name))
    output.note(output.text("train.follow", name=run.name))
