"""`loracle offers add`, `remove` and `rate`: what the user knows better than any catalog."""

from typing import TYPE_CHECKING, Annotated

import typer

from loracle import words
from loracle.cli.output import Output

if TYPE_CHECKING:
    from loracle.catalog.offer_file import OfferRow

_REQUIRED = ("--id", "--provider", "--gpu", "--price", "--source")


def add(
    file: str = typer.Option(None, "--file", "-f", help=words.text("help.offer.file")),
    id: str = typer.Option(None, "--id", help=words.text("help.offer.new_id")),  # noqa: A002
    provider: str = typer.Option(None, "--provider", help=words.text("help.offer.who")),
    gpu: str = typer.Option(None, "--gpu", help=words.text("help.catalog.gpu_one")),
    num_gpus: int = typer.Option(None, "--num-gpus", help=words.text("help.offer.num_gpus")),
    price: Annotated[
        list[str] | None, typer.Option("--price", help=words.text("help.offer.price"))
    ] = None,
    term_discount: Annotated[
        list[str] | None,
        typer.Option("--term-discount", help=words.text("help.offer.term_discount")),
    ] = None,
    loyalty: str = typer.Option(None, "--loyalty", help=words.text("help.offer.loyalty")),
    cores: int = typer.Option(None, "--cores", help=words.text("help.offer.cores")),
    ram: str = typer.Option(None, "--ram", help=words.text("help.offer.ram")),
    disk: str = typer.Option(None, "--disk", help=words.text("help.offer.disk")),
    network: float = typer.Option(None, "--network", help=words.text("help.offer.network")),
    share: str = typer.Option(None, "--share", help=words.text("help.offer.share")),
    memory: str = typer.Option(None, "--memory", help=words.text("help.offer.memory")),
    provenance: str = typer.Option(None, "--provenance", help=words.text("help.offer.provenance")),
    region: str = typer.Option(None, "--region", help=words.text("help.offer.region")),
    date: str = typer.Option(None, "--date", help=words.text("help.offer.date")),
    valid_until: str = typer.Option(None, "--valid-until", help=words.text("help.offer.valid")),
    source: str = typer.Option(None, "--source", help=words.text("help.offer.source")),
    notes: str = typer.Option(None, "--notes", help=words.text("help.offer.notes")),
    replace: bool = typer.Option(False, "--replace", help=words.text("help.offer.replace")),
    schema: bool = typer.Option(False, "--schema", help=words.text("help.offer.schema")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Keep a quote of your own; from flags, or from a file with one or more offers."""
    from loracle.catalog.offer_file import OfferRow
    from loracle.catalog.offers import add_quote
    from loracle.cli.today import today

    if schema:
        from loracle.domain.recipe_schema import described_schema

        Output("json").json(described_schema(OfferRow))
        return
    if file is not None:
        rows = _rows_of_file(file)
    else:
        given = {"--id": id, "--provider": provider, "--gpu": gpu, "--price": price,
                 "--source": source}  # fmt: skip
        _require(given)
        raw = {
            "id": id, "provider": provider, "gpu": gpu, "num_gpus": num_gpus,
            **_prices(price or []),
            "discounts": _discounts(term_discount or [], loyalty),
            "num_cores": cores,
            "ram_gib": _size(ram, 2**30), "disk_gb": _size(disk, 10**9),
            "network_mbit_per_s": network,
            "share": share, "memory_gib": _size(memory, 2**30),
            "provenance": provenance, "region": region,
            "as_of": date or today(), "valid_until": valid_until,
            "source": source, "notes": notes,
        }  # fmt: skip
        rows = (_checked({key: value for key, value in raw.items() if value not in (None, [])}),)
    output = Output("json" if as_json else "quiet" if quiet else "human")
    added = [(row.id, str(add_quote(row, replace=replace))) for row in rows]
    if output.mode == "json":
        output.json(
            {"schema": "loracle.added/1", "added": [{"id": one, "path": path}
                                                    for one, path in added]}
        )  # fmt: skip
        return
    for name, path in added:
        output.line(name if quiet else output.text("offers.added", id=name, path=path))


def remove(
    id: str = typer.Argument(..., help=words.text("help.offer.id")),  # noqa: A002
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Delete a quote of your own."""
    from loracle.catalog.offers import remove_quote

    output = Output("quiet" if quiet else "human")
    path = remove_quote(id)
    if not quiet:
        output.line(output.text("offers.removed", id=id, path=str(path)))


def rate(
    base: str = typer.Argument(..., help=words.text("help.offer.base")),
    quote: str = typer.Argument(..., help=words.text("help.offer.quote_currency")),
    value: str = typer.Argument(..., metavar="RATE", help=words.text("help.offer.rate_value")),
    date: str = typer.Option(None, "--date", help=words.text("help.offer.date")),
    source: str = typer.Option("set by hand", "--source", help=words.text("help.offer.source")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Keep an exchange rate: one BASE costs RATE units of QUOTE."""
    from pydantic import ValidationError

    from loracle.catalog.fx import RateRow, set_rate
    from loracle.cli.today import today

    output = Output("json" if as_json else "quiet" if quiet else "human")
    try:
        row = RateRow.model_validate(
            {"base": base.upper(), "quote": quote.upper(), "rate": value,
             "date": date or today(), "source": source}
        )  # fmt: skip
    except ValidationError as error:
        raise _flag_error(error, "hint.offer.rate") from error
    path = set_rate(row)
    if output.mode == "json":
        output.json({"schema": "loracle.rate/1", **row.model_dump(mode="json"), "path": str(path)})
    elif not quiet:
        output.line(
            output.text("offers.rate_set", base=row.base, quote=row.quote, rate=row.rate,
                        date=row.date.isoformat(), path=str(path))
        )  # fmt: skip


def _rows_of_file(file: str) -> "tuple[OfferRow, ...]":
    from pathlib import Path

    from loracle.catalog.folders import read_yaml
    from loracle.catalog.offer_file import rows_of
    from loracle.errors import InputError

    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError("error.missing_file", code="E010", path=file)
    return rows_of(read_yaml(path), path)


def _require(given: dict[str, object]) -> None:
    from loracle.errors import InputError

    missing = [name for name in _REQUIRED if not given[name]]
    if missing:
        raise InputError(
            "error.offer.missing_flags",
            code="E018",
            hint="hint.offer.flags",
            names=", ".join(missing),
        )


def _prices(texts: list[str]) -> dict[str, object]:
    """`1900CNY/month` and others of the same currency."""
    from loracle.errors import InputError
    from loracle.units import parse_money

    rows, currencies = [], set()
    for text in texts:
        amount, currency, period = parse_money(text)
        if period == "total":
            raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text)
        currencies.add(currency)
        rows.append({"term": period, "amount": amount, "period": period})
    if len(currencies) > 1:
        left, right = sorted(currencies)[:2]
        raise InputError("error.currency_mix", code="E016", left=left, right=right)
    return {"prices": rows, "currency": currencies.pop()}


def _discounts(term_discounts: list[str], loyalty: str | None) -> list[dict[str, object]]:
    """`year=20%`, `quarter=100`, and an amount off for a returning customer."""
    rows: list[dict[str, object]] = []
    for text in term_discounts:
        term, _, value = text.partition("=")
        key = "percent" if value.strip().endswith("%") else "amount"
        off = value.strip().removesuffix("%")
        rows.append({"kind": "term", "terms": [term.strip()], key: off})
    if loyalty is not None:
        rows.append({"kind": "loyalty", "amount": loyalty, "per_renewal": True, "max_times": 1})
    return rows


def _size(text: str | None, unit: int) -> float | None:
    from loracle.units import parse_bytes

    return None if text is None else parse_bytes(text) / unit


def _checked(raw: dict[str, object]) -> "OfferRow":
    from pydantic import ValidationError

    from loracle.catalog.offer_file import OfferRow

    try:
        return OfferRow.model_validate(raw)
    except ValidationError as error:
        raise _flag_error(error, "hint.offer.flags") from error


def _flag_error(error: Exception, hint: str) -> Exception:
    """Every wrong value at once, as problems of one input error."""
    from pydantic import ValidationError

    from loracle.errors import InputError, Problem

    assert isinstance(error, ValidationError)
    problems = [
        Problem(
            "error.offer.flags",
            code="E018",
            hint=hint if index == error.error_count() - 1 else None,
            key=".".join(str(part) for part in one["loc"]) or "-",
            reason=one["msg"].removeprefix("Value error, "),
        )
        for index, one in enumerate(error.errors())
    ]
    return InputError(
        problems[0].message, code="E018", hint=hint, problems=problems, **problems[0].values
    )
