"""`loracle audit`: is this rented machine the card that was paid for, and ready for the job."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.catalog.fingerprints import SoldAs
    from loracle.domain.audit import AuditReport
    from loracle.domain.plan import Plan
    from loracle.jobs.audit import Observation

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
    from loracle.jobs.audit import Case, judge

    output = Output("json" if as_json else "quiet" if quiet else layout)
    if recordings:
        _list_recordings(output)
        return
    plan = _plan_of(target)
    seen, recorded_sold = _observed(output, quick, soak, network, replay, record, sold)
    claim = _sold(sold or recorded_sold, plan if target and target.endswith(".json") else None)
    plan, needs, scored = _against_plan(target, plan, seen)
    report = judge(
        Case(seen=seen, sold=claim, needs=needs, quick=quick), replayed=replay, rescore=scored
    )
    if page:
        _write_page(page, report, output)
    if output.mode == "json":
        from loracle.report.audit_json import audit_document

        output.json(audit_document(report))
    else:
        show_audit(report, output, everything=everything)
    if seen.software.torch is None and seen.software.refusals.get("cuda") == "NotInstalled":
        output.hint("hint.missing_extra", extra="train")
    raise typer.Exit(report.exit_code)


def _list_recordings(output: Output) -> None:
    from loracle.cli.output import Column
    from loracle.jobs.audit import load_recording, shipped

    rows = [(path.stem, str(load_recording(path).get("title", ""))) for path in shipped()]
    if output.mode == "json":
        output.json({"schema": "loracle.recordings/1", "recordings": dict(rows)})
        return
    output.table([Column("--replay"), Column(output.text("audit.head.found"))], rows)


def _observed(
    output: Output,
    quick: bool,
    soak: str | None,
    network: bool,
    replay: str | None,
    record: str | None,
    sold: str | None,
) -> tuple["Observation", str | None]:
    """What was seen, live or from a recording, and what the recording says was sold."""
    from pathlib import Path

    from loracle.jobs.audit import Options, Replay, find_recording, load_recording, observe
    from loracle.units import parse_seconds

    seconds = parse_seconds(soak) if soak else 16.0 if quick else 180.0
    options = Options(
        idle_seconds=4.0 if quick else 10.0, soak_seconds=seconds, quick=quick, network=network
    )
    if replay:
        document = load_recording(find_recording(replay))
        return observe(Replay(document), options), document.get("sold")
    from loracle.jobs.audit.live import Live
    from loracle.jobs.audit.record import Recorder

    def progress(stage: str) -> None:
        output.note(output.text("audit.progress", stage=stage))

    quietly = output.mode in ("quiet", "json")
    with Live(quick=quick) as live:
        recorder = Recorder(live)
        seen = observe(recorder, options, (lambda stage: None) if quietly else progress)
    if record:
        recorder.write(Path(record), title=_title(seen), sold=sold)
        output.note(f"{output.text('audit.saved')}: {record}")
    return seen, None


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
    """A saved plan (JSON); a recipe is planned later, for the card that is found."""
    if target is None or not target.endswith(".json"):
        return None
    from pathlib import Path

    from loracle.errors import InputError
    from loracle.planner.plan_json import read_plan

    try:
        return read_plan(Path(target).read_text("utf-8"))
    except OSError as error:
        raise InputError("error.missing_file", code="E013", path=target) from error


def _against_plan(target: str | None, plan: "Plan | None", seen: "Observation"):  # noqa: ANN202
    """(plan, needs, rescore) for the card that was found; Nones without a recipe or a card."""
    from loracle.cli.today import today
    from loracle.jobs.audit.rescore import candidate_for, gpu_ids, needs_of, rescore

    ids = gpu_ids(seen.cards[0]) if seen.cards else ()
    if target is None:
        return None, None, None
    if plan is None:
        plan = _planned(target, ids)
    candidate = candidate_for(plan, ids, len(seen.cards))
    if candidate is None:
        best = plan.candidates[plan.best] if plan.best is not None else None
        return plan, needs_of(plan, best) if best else None, None
    from loracle.catalog.fx import load_rates
    from loracle.catalog.gpus import find_gpu
    from loracle.catalog.offers import load_offers

    offer = next((one for one in load_offers() if one.id == candidate.offer_id), None)
    scored = rescore(
        plan, candidate, find_gpu(candidate.gpu_id), seen.cards, offer=offer,
        rates=load_rates(), today=today(),
    )  # fmt: skip
    return plan, needs_of(plan, candidate), scored


def _planned(target: str, ids: tuple[str, ...]) -> "Plan":
    """The recipe's plan on the card that is here, or on all cards where it is not known."""
    from loracle.cli.recipe_file import read_recipe_file
    from loracle.cli.today import today
    from loracle.domain.recipe_text import parse_recipe
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    overrides: dict[str, object] = {"rent.gpus": list(ids)} if ids else {}
    if target.lower().endswith((".yaml", ".yml")):
        recipe = read_recipe_file(target, overrides).recipe
    else:
        recipe = parse_recipe("", "command line", {"model": target, **overrides})
    return make_plan(recipe, gather(recipe, today=today()))


def _write_page(page: str, report: "AuditReport", output: Output) -> None:
    from pathlib import Path

    from loracle.report.audit_html import audit_page

    Path(page).write_text(audit_page(report, output.language), "utf-8")
    output.note(f"{output.text('audit.saved')}: {page}")
