"""`loracle claims`: the claims that loracle grew from, each with our own figure beside it."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.planner.claims import Checked

STATUSES = ("reproduced", "contradicted", "out_of_reach")


def run(
    ids: list[str] = typer.Argument(  # noqa: B008
        None,
        metavar="[ID]...",
        help=words.text("help.claims_flag.ids"),  # noqa: B008
    ),
    status: str = typer.Option(None, "--status", help=words.text("help.claims_flag.status")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    layout: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "-q", "--quiet", help=words.text("help.quiet")),
) -> None:
    """Check the claims live and print the verdicts."""
    from loracle.cli.today import today
    from loracle.planner.claims import check_claims
    from loracle.planner.claims.bench import bench

    output = Output("json" if as_json else "quiet" if quiet else layout)
    checked = list(check_claims(_wanted(ids), bench(today())))
    shown = [one for one in checked if status in (None, one.status)]
    counts = {name: sum(one.status == name for one in checked) for name in STATUSES}
    if output.mode == "json":
        output.json({"schema": "loracle.claims/1", "counts": counts,
                     "claims": [_document(one) for one in shown]})  # fmt: skip
    elif output.mode == "quiet":
        output.line(output.text("claims.summary", **counts))
    else:
        _show(shown, output)
        output.line()
        output.line(f"  {output.text('claims.summary', **counts)}")


def _wanted(ids: list[str] | None):  # noqa: ANN202 - a lazy import
    """The claims with these ids, or all. Raises InputError E010 for an unknown id."""
    from loracle.catalog.claims import load_claims
    from loracle.errors import InputError

    claims = load_claims()
    if not ids:
        return claims
    by_id = {one.id.lower(): one for one in claims}
    unknown = [one for one in ids if one.lower() not in by_id]
    if unknown:
        raise InputError("error.unknown_claim", hint="hint.claims", names=", ".join(unknown))
    return [by_id[one.lower()] for one in ids]


def _show(checked: list["Checked"], output: Output) -> None:
    if output.mode == "md":
        _show_table(checked, output)
        return
    for one in checked:
        status = output.text(f"claims.{one.status}", by=output.text(f"claims.by.{one.by}"))
        output.line(f"  {one.id:<5} {status}")
        output.line(f"        {output.text(f'claim.{one.id}')}")
        for row in one.compared:
            verdict = output.text("claims.agrees" if row.agrees else "claims.differs")
            sentence = output.text(
                "claims.figure",
                name=row.name.replace("_", " "),
                stated=_ends(*row.stated),
                ours=_ours(row),
                how=row.figure.how,
            )
            output.line(f"          {verdict}  {sentence}")


def _show_table(checked: list["Checked"], output: Output) -> None:
    columns = ("id", "claim", "status", "figure", "stated", "ours", "how")
    rows = []
    for one in checked:
        status = output.text(f"claims.{one.status}", by=output.text(f"claims.by.{one.by}"))
        text = output.text(f"claim.{one.id}")
        if not one.compared:
            rows.append((one.id, text, status, "", "", "", ""))
        for index, row in enumerate(one.compared):
            first = (one.id, text, status) if index == 0 else ("", "", "")
            figure = (row.name.replace("_", " "), _ends(*row.stated), _ours(row), row.figure.how)
            rows.append((*first, *figure))
    output.table([Column(output.text(f"claims.column.{name}")) for name in columns], rows)


def _ours(row) -> str:  # noqa: ANN001 - Compared, a lazy import
    ours = row.figure.ours
    if ours.low == ours.high:
        return _number(ours.likely)
    return f"{_number(ours.likely)} ({_number(ours.low)} - {_number(ours.high)})"


def _ends(low: float, high: float) -> str:
    if low == high:
        return _number(low)
    if high >= 1000 and low < 1000 and low > 0 and high / low > 10:
        return f">= {_number(low)}"
    return f"{_number(low)} - {_number(high)}"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 10 else f"{value:.1f}".removesuffix(".0")


def _document(one: "Checked") -> dict[str, object]:
    from dataclasses import asdict

    return {
        "id": one.id,
        "status": one.status,
        "by": one.by,
        "figures": [
            {
                "name": row.name,
                "stated": list(row.stated),
                "ours": asdict(row.figure.ours),
                "how": row.figure.how,
                "agrees": row.agrees,
            }
            for row in one.compared
        ],
    }
