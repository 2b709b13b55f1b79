"""`loracle plan`: which card to rent, whether the job fits, how long, how much, and why."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.domain.plan import Plan
    from loracle.domain.recipe import Recipe

ENGINES = ("auto", "formula", "dryrun")


def _help(flag: str) -> str:
    """The help text of a flag."""
    return words.text(f"help.plan_flag.{flag}")


def run(
    target: str = typer.Argument(None, metavar="[RECIPE|MODEL]", help=_help("target")),
    data: str = typer.Option(None, "--data", help=_help("data")),
    eval_data: str = typer.Option(None, "--eval", help=_help("eval")),
    tokens: str = typer.Option(None, "--tokens", help=_help("tokens")),
    method: str = typer.Option(None, "--method", help=_help("method")),
    rank: int = typer.Option(None, "--lora-r", "--rank", help=_help("rank")),
    seq_len: int = typer.Option(
        None, "--seq-len", "--max-seq-length", "--cutoff-len", help=_help("seq_len")
    ),
    epochs: float = typer.Option(None, "--epochs", help=_help("epochs")),
    micro_batch: str = typer.Option(
        None,
        "--micro-batch",
        "--per-device-train-batch-size",
        help=_help("micro_batch"),
    ),
    stack: str = typer.Option(None, "--stack", help=_help("stack")),
    gpu: list[str] = typer.Option([], "--gpu", help=_help("gpu")),  # noqa: B008
    offers: list[str] = typer.Option(  # noqa: B008
        [],
        "--offers",
        help=_help("offers"),  # noqa: B008
    ),
    budget: str = typer.Option(None, "--budget", help=_help("budget")),
    deadline: str = typer.Option(None, "--deadline", help=_help("deadline")),
    currency: str = typer.Option(None, "--currency", help=_help("currency")),
    assignments: list[str] = typer.Option(  # noqa: B008
        [],
        "--set",
        metavar="KEY=VALUE",
        help=words.text("help.recipe_app.set"),  # noqa: B008
    ),
    engine: str = typer.Option("auto", "--engine", help=_help("engine")),
    explain: str = typer.Option(None, "--explain", help=_help("explain")),
    why: str = typer.Option(None, "--why", metavar="CARD", help=_help("why")),
    everything: bool = typer.Option(False, "--all", help=_help("all")),
    offline: bool = typer.Option(False, "--offline", help=_help("offline")),
    skip_bad: bool = typer.Option(False, "--skip-bad", help=_help("skip_bad")),
    save: str = typer.Option(None, "--save", metavar="FILE", help=_help("save")),
    recipe_out: str = typer.Option(None, "-o", "--output", metavar="FILE", help=_help("output")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Plan a job: read the recipe, ask the laws, print the answer; exit 1 where it is no."""
    from loracle.cli.plan_screen import quiet_line, show_plan
    from loracle.cli.recipe_file import overrides_of
    from loracle.errors import InputError
    from loracle.units import parse_count

    output = Output("json" if as_json else "quiet" if quiet else layout)
    _one_of("--engine", engine, ENGINES)
    _one_of("--format", layout, ("human", "md", "json"))
    _one_of("--explain", explain, (None, "memory", "speed", "cost"))
    flags = {
        "data.train": data, "data.eval": eval_data,
        "data.tokens": parse_count(tokens) if tokens else None,
        "method": method, "lora.rank": rank, "training.seq_len": seq_len,
        "training.epochs": epochs, "training.micro_batch": micro_batch, "stack": stack,
        "rent.gpus": list(gpu) or None, "rent.offers": _split(offers) or None,
        "rent.budget": budget, "rent.deadline": deadline,
        "rent.currency": currency and currency.upper(),
    }  # fmt: skip
    overrides = {key: value for key, value in flags.items() if value is not None}
    overrides |= overrides_of(assignments)
    if target is None and "model" not in overrides:
        raise InputError("error.no_target", code="E011", hint="hint.no_target")
    recipe = read_target(target, overrides)
    plan = planned(
        recipe,
        engine=engine,
        offline=offline,
        skip_bad=skip_bad,
        output=output,
        fill_cards=None if as_json or save or everything else 1,
    )
    _write(plan, recipe, save, recipe_out)
    speaker = speaker_for(output)
    if output.mode == "json":
        from loracle.planner.plan_json import plan_document

        output.json(plan_document(plan))
    elif output.mode == "quiet":
        output.line(quiet_line(plan, speaker))
    elif why is not None:
        from loracle.cli.plan_why import show_why

        show_why(plan, why, output, speaker)
    elif explain is not None:
        from loracle.cli.plan_explain import show_explanation

        show_explanation(plan, explain, output, speaker)
    else:
        show_plan(plan, output, speaker, everything=everything)
        _next_steps(output, target, recipe_out)
    raise typer.Exit(0 if plan.best is not None else 1)


def planned(
    recipe: "Recipe",
    *,
    engine: str,
    offline: bool,
    skip_bad: bool,
    output: Output,
    fill_cards: int | None = None,
) -> "Plan":
    """The plan by the asked-for engine; `auto` dry-runs where the training libraries are.

    Raises MissingExtra E051 for `dryrun` without them.
    """
    from loracle.cli.today import today
    from loracle.errors import MissingExtra
    from loracle.jobs.libraries import missing_library
    from loracle.planner.gather import gather
    from loracle.planner.own_runs import user_laws
    from loracle.planner.plan import make_plan

    lacking = missing_library()
    if engine == "dryrun" and lacking is not None:
        raise MissingExtra("train", lacking)
    facts = gather(recipe, today=today(), offline=offline, skip_bad=skip_bad)
    laws = user_laws(facts.gpus)
    if engine == "formula" or lacking is not None:
        return make_plan(recipe, facts, laws=laws, fill_cards=fill_cards)
    from loracle.cli.trace_progress import TraceProgress
    from loracle.jobs.traces import traced

    with TraceProgress(output) as progress:
        return make_plan(
            recipe,
            facts,
            laws=laws,
            tracer=lambda setup, gpu: traced(setup, gpu, progress),
            fill_cards=fill_cards,
        )


def read_target(target: str | None, overrides: dict[str, object]) -> "Recipe":
    """The recipe of a YAML file, or one that only names a model; overrides on top."""
    from loracle.cli.recipe_file import read_recipe_file
    from loracle.domain.recipe_text import parse_recipe

    if target is not None and target.lower().endswith((".yaml", ".yml")):
        return read_recipe_file(target, overrides).recipe
    if target is not None:
        overrides = {"model": target, **overrides}
    return parse_recipe("", "command line", overrides)


def _one_of(flag: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    from loracle.errors import InputError

    if value not in allowed:
        names = ", ".join(one for one in allowed if one)
        raise InputError("error.choice", code="E011", flag=flag, got=value, allowed=names)


def _split(values: list[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]


def speaker_for(output: Output):  # noqa: ANN201 - a lazy import
    """The words and card names for an output's language."""
    from loracle.catalog.gpus import load_gpus
    from loracle.cli.say import Speaker

    return Speaker(output.language, {gpu.id: gpu.name for gpu in load_gpus()})


def _write(plan: "Plan", recipe: "Recipe", save: str | None, recipe_out: str | None) -> None:
    import json

    from loracle.cli.write_file import write_whole
    from loracle.planner.plan_json import plan_document
    from loracle.planner.recipe_out import resolved_recipe

    if save is not None:
        document = json.dumps(plan_document(plan), ensure_ascii=False, indent=1)
        write_whole(save, document + "\n")
    if recipe_out is not None:
        import yaml

        text = yaml.safe_dump(resolved_recipe(plan), allow_unicode=True, sort_keys=False)
        write_whole(recipe_out, text)


def _next_steps(output: Output, target: str | None, recipe_out: str | None) -> None:
    name = recipe_out or (target if target and target.endswith((".yaml", ".yml")) else None)
    if name is None:
        output.note(f"\n  {output.text('label.next')}: {output.text('plan.next_recipe')}")
    else:
        output.note(f"\n  {output.text('label.next')}: {output.text('plan.next', name=name)}")
