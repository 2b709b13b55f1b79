"""Exchange rates: one shipped round figure, and the dated rates that the user sets.

A converted price is only as good as its rate, so every rate has a date and a source, and
interfaces print the rate beside what it converted.
"""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loracle.catalog.folders import config_folder, read_yaml, write_whole
from loracle.domain.money import FxRate
from loracle.errors import CatalogError

DATA = Path(__file__).parent / "data" / "fx.yaml"
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class RateRow(BaseModel):
    """One unit of `base` costs `rate` units of `quote`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: Currency
    quote: Currency
    rate: Annotated[Decimal, Field(gt=0, lt=10**9, allow_inf_nan=False)]
    date: datetime.date
    source: Annotated[str, Field(min_length=1)]


class _RateFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rates: tuple[RateRow, ...]


def rate_file() -> Path:
    """Where the user's rates live."""
    return config_folder() / "fx.yaml"


def load_rates(*, user_file: Path | None = None) -> tuple[FxRate, ...]:
    """The user's rates first, then the shipped ones that they do not replace.

    Raises CatalogError E035 for a broken file.
    """
    own = _read(user_file or rate_file())
    pairs = {frozenset((rate.base, rate.quote)) for rate in own}
    shipped = _read(DATA)
    return own + tuple(r for r in shipped if frozenset((r.base, r.quote)) not in pairs)


def set_rate(row: RateRow, *, user_file: Path | None = None) -> Path:
    """Keep a rate, in place of an older one of the same two currencies; return the file.

    Raises CatalogError E035 for a pair of one currency, a broken or unwritable file.
    """
    path = user_file or rate_file()
    if row.base == row.quote:
        raise CatalogError("error.fx.same", code="E035", base=row.base)
    pair = frozenset((row.base, row.quote))
    kept = [rate for rate in _read(path) if frozenset((rate.base, rate.quote)) != pair]
    rows = [
        {"base": rate.base, "quote": rate.quote, "rate": str(rate.rate), "date": rate.date,
         "source": rate.source}
        for rate in (*kept, _rate(row))
    ]  # fmt: skip
    import yaml

    write_whole(path, yaml.safe_dump({"rates": rows}, allow_unicode=True, sort_keys=False))
    return path


def _read(path: Path) -> tuple[FxRate, ...]:
    if not path.is_file():
        return ()
    try:
        document = _RateFile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "-"
        raise CatalogError(
            "error.fx.file", code="E035", hint="hint.fx.file",
            path=str(path), key=key, reason=first["msg"],
        ) from error  # fmt: skip
    return tuple(_rate(row) for row in document.rates)


def _rate(row: RateRow) -> FxRate:
    return FxRate(row.base, row.quote, row.rate, row.date.isoformat(), row.source)
