"""What an offer must look like in a file: the schema of shipped offers and of users' quotes.

One file holds one offer, or a list under `offers`. Money is a number beside a currency; sizes
carry their unit in the key. Whatever is wrong in a file is found in one pass.
"""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loracle.catalog.gpus import find_gpu
from loracle.domain.gpu import Node
from loracle.domain.money import Money
from loracle.domain.offer import TERMS, AddOn, Discount, Offer, Price
from loracle.errors import CatalogError, InputError, Problem
from loracle.units import GB, GIB

Term = Literal["hour", "day", "week", "month", "quarter", "year"]
Amount = Annotated[Decimal, Field(gt=0, max_digits=12, decimal_places=6, allow_inf_nan=False)]
AmountOrNothing = Annotated[
    Decimal, Field(ge=0, max_digits=12, decimal_places=6, allow_inf_nan=False)
]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_LONGER_THAN_A_MONTH = ("quarter", "year")


class _Row(BaseModel):
    # no use_attribute_docstrings: it would read the source at every start (domain/recipe_schema)
    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, defer_build=True
    )


class PriceRow(_Row):
    """A price for a term."""

    term: Term
    amount: Amount
    period: Term | None = None
    """What the amount is for; by default the term itself, a month for quarter and year."""


class DiscountRow(_Row):
    """One step down, in the order of the list."""

    kind: Literal["term", "coupon", "member", "loyalty"]
    terms: tuple[Term, ...] = ()
    percent: Annotated[Decimal, Field(ge=0, lt=100)] = Decimal(0)
    amount: AmountOrNothing = Decimal(0)
    per_renewal: bool = False
    max_times: Annotated[int, Field(gt=0)] | None = None
    floor: AmountOrNothing | None = None
    note: str = ""

    @model_validator(mode="after")
    def _takes_something_off(self) -> Self:
        if not self.percent and not self.amount:
            raise ValueError("a discount needs a percent or an amount")
        return self


class AddOnRow(_Row):
    """An extra, by the month unless it says otherwise."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    kind: Literal["cores", "ram", "disk", "network", "other"] = "other"
    amount: AmountOrNothing
    period: Term = "month"
    num_cores: Annotated[int, Field(gt=0)] | None = None
    ram_gib: Positive | None = None
    disk_gb: Positive | None = None
    network_mbit_per_s: Positive | None = None


class OfferRow(_Row):
    """One offer of one provider."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=80)]
    provider: Annotated[str, Field(min_length=1)]
    gpu: Annotated[str, Field(min_length=1)]
    """A card, in any spelling that names one."""
    num_gpus: Annotated[int, Field(gt=0, le=64)] = 1
    share: Literal["whole", "mig", "software-slice", "unknown"] = "whole"
    share_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    memory_gib: Positive | None = None
    """Memory of the part, where not the whole card is rented."""
    num_cores: Annotated[int, Field(gt=0)] | None = None
    ram_gib: Positive | None = None
    disk_gb: Positive | None = None
    network_mbit_per_s: Positive | None = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "CNY"
    prices: Annotated[tuple[PriceRow, ...], Field(min_length=1)]
    price_low: Amount | None = None
    price_high: Amount | None = None
    discounts: tuple[DiscountRow, ...] = ()
    add_ons: tuple[AddOnRow, ...] = ()
    whole_node_factor: tuple[Amount, Amount] | None = None
    min_term: Term | None = None
    bills_whole_terms: bool = True
    refund: str = ""
    held_when_stopped: bool | None = None
    provenance: Literal["listed", "quoted", "negotiated", "estimated"] = "quoted"
    region: str = ""
    as_of: datetime.date
    valid_until: datetime.date | None = None
    source: Annotated[str, Field(min_length=1)]
    claim: str | None = None
    risk: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.share == "whole" and self.share_fraction != 1:
            raise ValueError("a whole card has share_fraction 1")
        if self.share in ("mig", "software-slice") and self.memory_gib is None:
            raise ValueError("a part of a card needs memory_gib")
        for name in ("term", "id"):
            rows = self.prices if name == "term" else self.add_ons
            names = [getattr(row, name) for row in rows]
            if len(names) != len(set(names)):
                raise ValueError(f"each {name} may stand once")
        low, high = self.price_low, self.price_high
        amounts = [row.amount for row in self.prices]
        if (low is not None and low > min(amounts)) or (high is not None and high < max(amounts)):
            raise ValueError("price_low <= amount <= price_high")
        if self.whole_node_factor and self.whole_node_factor[0] > self.whole_node_factor[1]:
            raise ValueError("whole_node_factor is [low, high]")
        return self


def rows_of(document: object, path: Path | str) -> tuple[OfferRow, ...]:
    """The offers of a parsed file: one mapping, or a list under `offers`.

    Raises CatalogError E035 where it holds no offers, InputError E035 with every wrong key of the
    file as a problem.
    """
    raw = document["offers"] if isinstance(document, dict) and "offers" in document else [document]
    if not isinstance(raw, list) or not raw:
        raise CatalogError(
            "error.offer.no_offers", code="E035", hint="hint.offer.file", path=str(path)
        )
    rows: list[OfferRow] = []
    problems: list[Problem] = []
    for index, entry in enumerate(raw):
        try:
            rows.append(OfferRow.model_validate(entry))
        except ValidationError as error:
            problems += _problems(error, entry, index, path)
    if problems:
        first: dict[str, Any] = dict(problems[0].values)
        raise InputError(
            "error.offer.file", code="E035", hint="hint.offer.file", problems=problems, **first
        )
    return tuple(rows)


def _problems(
    error: ValidationError, entry: object, index: int, path: Path | str
) -> Iterator[Problem]:
    name = entry.get("id") if isinstance(entry, dict) else None
    faults = error.errors()
    inside = {fault["loc"][0] for fault in faults if len(fault["loc"]) > 1}
    for one in faults:
        if one["type"] == "too_short" and one["loc"][0] in inside:
            continue  # pydantic also counts what is left of a list without its wrong items
        key = ".".join(str(part) for part in one["loc"]) or "-"
        yield Problem(
            "error.offer.file",
            code="E035",
            path=str(path),
            offer=str(name or f"#{index + 1}"),
            key=key,
            reason=one["msg"].removeprefix("Value error, "),
        )


def offer_of(row: OfferRow) -> Offer:
    """The offer in base units; raises CatalogError E031 for a card that is not known."""
    money = row.currency
    prices = tuple(
        Price(
            term=price.term,
            amount=Money(price.amount, money),
            period=price.period or ("month" if price.term in _LONGER_THAN_A_MONTH else price.term),
        )
        for price in row.prices
    )
    return Offer(
        id=row.id,
        provider=row.provider,
        node=_node(row),
        prices=prices,
        discounts=tuple(Discount(**discount.model_dump()) for discount in row.discounts),
        add_ons=tuple(_add_on(add_on, money) for add_on in row.add_ons),
        whole_node_factor=row.whole_node_factor,
        min_term=row.min_term or min((price.term for price in prices), key=TERMS.index),
        bills_whole_terms=row.bills_whole_terms,
        refund=row.refund,
        held_when_stopped=row.held_when_stopped,
        provenance=row.provenance,
        price_low=None if row.price_low is None else Money(row.price_low, money),
        price_high=None if row.price_high is None else Money(row.price_high, money),
        region=row.region,
        as_of=row.as_of.isoformat(),
        valid_until=row.valid_until.isoformat() if row.valid_until else None,
        source=row.source,
        claim=row.claim,
        risk=row.risk,
        notes=row.notes,
    )


def text_of(row: OfferRow) -> str:
    """The row as YAML, with only what it says beyond the defaults."""
    import yaml

    said: dict[str, Any] = row.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(said, allow_unicode=True, sort_keys=False, width=100)


def _node(row: OfferRow) -> Node:
    return Node(
        gpu_id=find_gpu(row.gpu).id,
        num_gpus=row.num_gpus,
        share=row.share,
        share_fraction=row.share_fraction,
        memory_bytes=_bytes(row.memory_gib, GIB),
        num_cores=row.num_cores,
        ram_bytes=_bytes(row.ram_gib, GIB),
        disk_bytes=_bytes(row.disk_gb, GB),
        network_bytes_per_s=_bytes_per_s(row.network_mbit_per_s),
    )


def _add_on(row: AddOnRow, currency: str) -> AddOn:
    return AddOn(
        id=row.id,
        kind=row.kind,
        price=Money(row.amount, currency),
        period=row.period,
        num_cores=row.num_cores,
        ram_bytes=_bytes(row.ram_gib, GIB),
        disk_bytes=_bytes(row.disk_gb, GB),
        network_bytes_per_s=_bytes_per_s(row.network_mbit_per_s),
    )


def _bytes(value: float | None, unit: int) -> int | None:
    return None if value is None else round(value * unit)


def _bytes_per_s(mbit_per_s: float | None) -> float | None:
    return None if mbit_per_s is None else mbit_per_s * 1e6 / 8
