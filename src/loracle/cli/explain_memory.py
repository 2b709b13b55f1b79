"""`loracle explain-memory`: memory over one training step, and who owns it at the peak."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.cli.say import Speaker
    from loracle.domain.gpu import Gpu
    from loracle.domain.plan import Candidate, Plan
    from loracle.domain.trace import Trace


def _help(flag: str) -> str:
    """The help text of a flag."""
    return words.text(f"help.explain_memory_flag.{flag}")


def run(
    target: str = typer.Argument(..., metavar="RECIPE|MODEL", help=_help("target")),
    gpu: str = typer.Option(None, "--gpu", help=_help("gpu")),
    svg: str = typer.Option(None, "--svg", metavar="FILE", help=_help("svg")),
    engine: str = typer.Option("auto", "--engine", help=words.text("help.plan_flag.engine")),
    assignments: list[str] = typer.Option(  # noqa: B008
        [],
        "--set",
        metavar="KEY=VALUE",
        help=words.text("help.recipe_app.set"),  # noqa: B008
    ),
    offline: bool = typer.Option(False, "--offline", help=words.text("help.plan_flag.offline")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
) -> None:
    """Plan the job, dry-run the chosen setting, and draw its memory."""
    from loracle.cli.plan import read_target, speaker_for
    from loracle.cli.recipe_file import overrides_of
    from loracle.cli.today import today
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    output = Output("json" if as_json else layout)
    overrides: dict[str, object] = {"rent.gpus": [gpu]} if gpu else {}
    recipe = read_target(target, {**overrides, **overrides_of(assignments)})
    facts = gather(recipe, today=today(), offline=offline)
    plan = make_plan(recipe, facts)
    one = plan.candidates[plan.best or 0]
    card = next(each for each in facts.gpus if each.id == one.gpu_id)
    trace = _trace(one, card, engine, output)
    if trace is None:
        _from_terms(plan, svg, output, speaker_for(output))
    else:
        _from_trace(one, card, trace, svg, output, speaker_for(output))


def _trace(one: "Candidate", card: "Gpu", engine: str, output: Output) -> "Trace | None":
    """The trace of the chosen setting; None, with the reason on stderr, where there is none."""
    from loracle.cli.trace_progress import TraceProgress
    from loracle.errors import EngineError, MissingExtra
    from loracle.jobs.libraries import missing_library

    lacking = missing_library()
    if engine == "formula":
        return None
    if lacking is not None:
        if engine == "dryrun":
            raise MissingExtra("train", lacking)
        output.hint("advice.install_train")
        return None
    from loracle.jobs.traces import traced

    try:
        with TraceProgress(output) as progress:
            return traced(one.setup, card, progress)
    except EngineError as error:
        if engine == "dryrun":
            raise
        reason = output.text(error.message, **error.values)
        output.warning("advice.no_dry_run", reason=reason)
        return None


def _from_trace(
    one: "Candidate", card: "Gpu", trace: "Trace", svg: str | None, output: Output,
    speaker: "Speaker",
) -> None:  # fmt: skip
    from loracle.cli.memory_chart import memory_chart, owner_rows
    from loracle.planner.exact import memory_of
    from loracle.planner.memory_curve import memory_curve
    from loracle.units import GIB, gib

    curve = memory_curve(trace, points=max(24, min(96, output.console().width - 12)))
    memory = memory_of(trace, card)
    if svg is not None:
        _write_svg(one, curve, svg, speaker)
    if output.mode == "json":
        _print_json(one, curve, memory, trace, output)
        return
    output.line(f"  {_title(one, speaker)}")
    output.line()
    for line in memory_chart(curve, speaker):
        output.line(line)
    output.line()
    rows = []
    for owner, size, share in owner_rows(curve.owners, curve.peak_bytes):
        if owner is None:
            rows.append((f"  {speaker.text('term.small')}", "", "", gib(size, 2), f"{share:.0%}"))
            continue
        rows.append(
            (f"  {_short(owner.module)}", speaker.text(f"owner.{owner.kind.replace(' ', '_')}"),
             owner.op, gib(size, 2), f"{share:.0%}")
        )  # fmt: skip
    columns = ("module", "kind", "op")
    output.table(
        [
            *(Column(("  " if name == "module" else "") + speaker.text(f"memory_table.{name}"))
              for name in columns),
            Column(speaker.text("plan.column.value"), right=True),
            Column(speaker.text("plan.column.share"), right=True),
        ],
        rows,
    )  # fmt: skip
    output.line()
    for name in ("allocated", "reserved", "device"):
        value = getattr(memory, f"{name}_bytes").likely
        output.line(f"  {speaker.text(f'explain.{name}')}: {gib(value, 2)}")
    free = one.usable_bytes - memory.device_bytes.likely
    output.line(
        "  "
        + speaker.text(
            "explain.usable", usable=gib(one.usable_bytes, 2), free=f"{free / GIB:+.2f} GiB"
        )
    )


def _from_terms(plan: "Plan", svg: str | None, output: Output, speaker: "Speaker") -> None:
    """Without a trace there is no timeline: the formula's terms at the peak stand for it."""
    from loracle.cli.plan_screen import show_memory
    from loracle.errors import InputError

    if svg is not None:
        raise InputError("error.no_timeline", code="E040", hint="advice.install_train")
    if output.mode == "json":
        from loracle.planner.plan_json import plan_document

        document = plan_document(plan)
        output.json({"schema": "loracle.memory/1", "engine": plan.memory.engine,
                     "memory": document["memory"]})  # fmt: skip
        return
    show_memory(plan, output, speaker)


def _print_json(one, curve, memory, trace, output: Output) -> None:  # noqa: ANN001
    from dataclasses import asdict

    output.json(
        {
            "schema": "loracle.memory/1",
            "engine": "dryrun",
            "gpu": one.gpu_id,
            "memory": asdict(memory),
            "usable_bytes": one.usable_bytes,
            "points_bytes": list(curve.points),
            "stretches": [asdict(stretch) for stretch in curve.stretches],
            "owners": [{**asdict(owner), "bytes": size} for owner, size in curve.owners],
            "software": dict(trace.software),
        }
    )


def _write_svg(one: "Candidate", curve, path: str, speaker: "Speaker") -> None:  # noqa: ANN001
    from loracle.cli.write_file import write_whole
    from loracle.report.memory_svg import memory_svg
    from loracle.units import gib

    label = speaker.text("plan.usable_of", card=speaker.name(one.gpu_id),
                         usable=gib(one.usable_bytes))  # fmt: skip
    picture = memory_svg(
        curve,
        _title(one, speaker),
        lambda phase: speaker.text(f"phase.{phase}"),
        usable_bytes=one.usable_bytes,
        usable_label=label,
    )
    write_whole(path, picture)


def _title(one: "Candidate", speaker: "Speaker") -> str:
    setup = one.setup
    return speaker.text(
        "plan.step_memory",
        model=setup.model.id,
        method=speaker.text(f"method.{setup.method}"),
        micro_batch=setup.micro_batch,
        seq_len=setup.seq_len,
        accum=setup.grad_accum,
        card=speaker.name(one.gpu_id),
    )


def _short(module: str) -> str:
    """The module's path without the wrappers that PEFT puts around it."""
    short = module.removeprefix("base_model.model.").removeprefix("model.")
    return short or module or "-"
