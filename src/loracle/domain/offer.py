"""Offers: a machine, its price by term, the discounts that stack, and where the price is from.

Terms are `hour`, `day`, `week`, `month`, `quarter`, `year`. A price is per `period` (its own
unit of billing), so a yearly term may be quoted per month.
"""

from dataclasses import dataclass
from decimal import Decimal

from loracle.domain.gpu import Node
from loracle.domain.money import Money

TERMS = ("hour", "day", "week", "month", "quarter", "year")
HOURS_IN_TERM = {"hour": 1, "day": 24, "week": 168, "month": 730, "quarter": 2190, "year": 8760}
MONTHS_IN_TERM = {"month": 1, "quarter": 3, "year": 12}
PROVENANCE = ("listed", "quoted", "negotiated", "estimated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discount:
    """One step of the price ladder, applied in the order in which the offer lists them.

    `kind`: term, coupon, member, loyalty. `percent` off what is left, or `amount` off per
    `period`. A loyalty rebate counts once per renewal up to `max_times`. `floor` is the lowest
    price per period that it may lead to.
    """

    kind: str
    terms: tuple[str, ...] = ()  # empty: every term
    percent: Decimal = Decimal(0)
    amount: Decimal = Decimal(0)
    per_renewal: bool = False
    max_times: int | None = None
    floor: Decimal | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOn:
    """An extra, priced per period: 16 cores, 128 GB RAM, 1 TB disk, 200 Mb/s."""

    id: str
    kind: str  # cores, ram, disk, network, other
    price: Money
    period: str = "month"
    num_cores: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None
    network_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """`amount` per `period` for a commitment of `term`; e.g. term year, period month."""

    term: str
    amount: Money
    period: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one provider rents, as it was seen on `as_of` (ISO date)."""

    id: str
    provider: str
    node: Node
    prices: tuple[Price, ...]
    discounts: tuple[Discount, ...] = ()
    add_ons: tuple[AddOn, ...] = ()
    whole_node_factor: tuple[Decimal, Decimal] | None = None  # A-P8: low, high
    min_term: str = "hour"
    bills_whole_terms: bool = True
    refund: str = ""
    held_when_stopped: bool | None = None
    provenance: str = "listed"
    price_low: Money | None = None  # the ends, where only a range is known
    price_high: Money | None = None
    region: str = ""
    as_of: str = ""
    valid_until: str | None = None
    source: str = ""
    claim: str | None = None  # A-P3
    risk: str = ""  # message id: home-run host, slice, estimate
    notes: str = ""
