"""`loracle audit`: is this rented machine the card that was paid for, and ready for the job."""

from typing import TYPE_CHECKING, Any

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.catalog.fingerprints import SoldAs
    from loracle.domain.audit import Rescore
    from loracle.domain.plan import Plan
    from loracle.domain.recipe import Recipe
    from loracle.jobs.audit import Needs, Observation
    from loracle.jobs.audit.record import Recorder

_help = "help.audit_option."


def run(
    target: str = typer.Argument(None, metavar="[RECIPE|PLAN]", help=words.text(f"{_help}recipe")),
    sold: str = typer.Option(None, "--sold", metavar="OFFER", help=words.text(f"{_help}sold")),
    quick: bool = typer.Option(False, "--quick", help=words.text(f"{_help}quick")),
    soak: str = typer.Option(None, "--soak", metavar="TIME", help=words.text(f"{_help}soak")),
    network: bool = typer.Option(False, "--network", help=words.text(f"{_help}network")),
    replay: str = typer.Option(None, "--replay", metavar="FILE", help=words.text(f"{_help}replay")),
    record: str = typer.Option(None, "--record", metavar="FILE", help=words.text(f"{_help}record")),
    page: str = typer.Option(None, "--report", metavar="FILE", help=words.text(f"{_help}report")),
    everything: bool = typer.Option(False, "--all", help=words.text(f"{_help}all")),
    recordings: bool = typer.Option(False, "--recordings", help=words.text(f"{_help}recordings")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Audit this machine or a recorded one; exit 0 pass, 1 warn, 2 fail, 3 could not test."""
    from loracle.cli.audit_screen import show_audit
    from loracle.cli.write_file import write_whole
    from loracle.jobs.audit import Case, judge

    output = Output("json" if as_json else "quiet" if quiet else layout)
    _one_of("--format", layout, ("human", "md", "json"))
    if recordings:
        _list_recordings(output)
        return
    # all that can be wrong in the question is found before minutes are spent on the answer
    document = _recording(replay)
    plan = _plan_of(target)
    claim = _sold(sold or (document or {}).get("sold"), plan)
    for path in (record, page):
        _check_writable(path)
    seen, recorded = _observed(output, document, quick, soak, network)
    needs, scored = _against_plan(target, plan, seen)
    report = judge(
        Case(seen=seen, sold=claim, needs=needs, quick=quick), replayed=replay, rescore=scored
    )
    if record and recorded is not None:
        write_whole(record, recorded.text(title=_title(seen), sold=sold))
        output.note(f"{output.text('audit.saved')}: {record}")
    if page:
        from loracle.report.audit_html import audit_page

        write_whole(page, audit_page(report, output.language))
        output.note(f"{output.text('audit.saved')}: {page}")
    if output.mode == "json":
        from loracle.report.audit_json import audit_document

        output.json(audit_document(report))
    else:
        show_audit(report, output, everything=everything)
    if seen.software.torch is None and seen.software.refusals.get("cuda") == "NotInstalled":
        output.hint("hint.missing_extra", extra="train")
    raise typer.Exit(report.exit_code)


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    from loracle.errors import InputError

    if value not in allowed:
        raise InputError(
            "error.choice", code="E011", flag=flag, got=value, allowed=", ".join(allowed)
        )


def _check_writable(path: str | None) -> None:
    """Raises InputError E013 for a file that could not be written in the end."""
    import os
    from pathlib import Path

    from loracle.errors import InputError

    if path is None:
        return
    folder = Path(path).absolute().parent
    if not os.access(folder, os.W_OK) or Path(path).is_dir():
        raise InputError("error.unwritable", code="E013", path=path, reason=str(folder))


def _recording(replay: str | None) -> "dict[str, Any] | None":
    from loracle.jobs.audit import find_recording, load_recording

    return load_recording(find_recording(replay)) if replay else None


def _list_recordings(output: Output) -> None:
    from loracle.cli.output import Column
    from loracle.jobs.audit import load_recording, shipped

    rows = [(path.stem, str(load_recording(path).get("title", ""))) for path in shipped()]
    if output.mode == "json":
        output.json({"schema": "loracle.recordings/1", "recordings": dict(rows)})
        return
    output.table([Column("--replay"), Column(output.text("audit.head.found"))], rows)


def _observed(
    output: Output, document: "dict[str, Any] | None", quick: bool, soak: str | None, network: bool
) -> tuple["Observation", "Recorder | None"]:
    """What was seen, and what the live machine answered, kept for a recording."""
    from loracle.jobs.audit import Options, Replay, observe
    from loracle.units import parse_seconds

    seconds = parse_seconds(soak) if soak else 16.0 if quick else 180.0
    options = Options(
        idle_seconds=4.0 if quick else 10.0, soak_seconds=seconds, quick=quick, network=network
    )
    if document is not None:
        return observe(Replay(document), options), None
    from loracle.jobs.audit.live import Live
    from loracle.jobs.audit.record import Recorder

    def progress(stage: str) -> None:
        if output.mode not in ("quiet", "json"):
            output.note(output.text("audit.progress", stage=stage))

    with Live(quick=quick) as live:
        recorder = Recorder(live)
        return observe(recorder, options, progress), recorder


def _title(seen: "Observation") -> str:
    names = [card.name or "?" for card in seen.cards]
    return f"{len(names)} x {names[0]}" if names else "no NVIDIA card"


def _sold(text: str | None, plan: "Plan | None") -> "SoldAs | None":
    """What was sold: the renter's words, else the best candidate of a saved plan."""
    from loracle.catalog.fingerprints import sold_as

    if text:
        return sold_as(text)
    if plan is None or plan.best is None:
        return None
    from loracle.catalog.gpus import find_gpu

    best = plan.candidates[plan.best]
    return sold_as(f"{best.num_gpus}x {find_gpu(best.gpu_id).name}")


def _plan_of(target: str | None) -> "Plan | None":
    """A saved plan (JSON). A recipe is only read here: it is planned for the card that is found."""
    if target is None:
        return None
    if not target.endswith(".json"):
        _recipe(target, ())
        return None
    from pathlib import Path

    from loracle.errors import InputError
    from loracle.planner.plan_json import read_plan

    try:
        return read_plan(Path(target).read_text("utf-8"))
    except OSError as error:
        raise InputError("error.missing_file", code="E013", path=target) from error


def _against_plan(
    target: str | None, plan: "Plan | None", seen: "Observation"
) -> "tuple[Needs | None, Rescore | None]":
    """What the job needs, and its time on the measured card; Nones without a recipe or a card."""
    from loracle.cli.today import today
    from loracle.jobs.audit.rescore import candidate_for, gpu_ids, needs_of, rescore

    if target is None:
        return None, None
    ids = gpu_ids(seen.cards[0]) if seen.cards else ()
    plan = plan or _planned(target, ids)
    candidate = candidate_for(plan, ids, len(seen.cards))
    if candidate is None:
        best = plan.candidates[plan.best] if plan.best is not None else None
        return needs_of(plan, best) if best else None, None
    from loracle.catalog.fx import load_rates
    from loracle.catalog.gpus import find_gpu
    from loracle.catalog.offers import load_offers

    offer = next((one for one in load_offers() if one.id == candidate.offer_id), None)
    scored = rescore(
        plan, candidate, find_gpu(candidate.gpu_id), seen.cards, offer=offer,
        rates=load_rates(), today=today(),
    )  # fmt: skip
    return needs_of(plan, candidate), scored


def _planned(target: str, ids: tuple[str, ...]) -> "Plan":
    """The recipe's plan on the card that is here, or on all cards where it is not known."""
    from loracle.cli.today import today
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    recipe = _recipe(target, ids)
    return make_plan(recipe, gather(recipe, today=today()))


def _recipe(target: str, ids: tuple[str, ...]) -> "Recipe":
    """The recipe of a file, or one that only names a model, for these cards."""
    from loracle.cli.recipe_file import read_recipe_file
    from loracle.domain.recipe_text import parse_recipe

    overrides: dict[str, object] = {"rent.gpus": list(ids)} if ids else {}
    if target.lower().endswith((".yaml", ".yml")):
        return read_recipe_file(target, overrides).recipe
    return parse_recipe("", "command line", {"model": target, **overrides})
