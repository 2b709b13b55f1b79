"""Claims about prices: what the offers of the catalog come to under the money law."""

from collections.abc import Callable, Mapping
from decimal import Decimal

from loracle.domain.estimate import Range
from loracle.estimate.money import period_price, whole_node_price
from loracle.planner.claims.figures import Bench, Figure

A100 = "idc10000-a100-40g"


def _monthly(offer_id: str) -> Callable[[Bench], Mapping[str, Figure]]:
    def check(bench: Bench) -> Mapping[str, Figure]:
        price = period_price(bench.offers[offer_id], "month")
        ends = Range(float(price.low.amount), float(price.amount.amount), float(price.high.amount))
        return {"cny_per_month": Figure(ends, offer_id)}

    return check


def _ladder(bench: Bench) -> Mapping[str, Figure]:
    offer = bench.offers[A100]
    found = {term: period_price(offer, term) for term in ("month", "quarter", "year")}
    found["year_renewed"] = period_price(offer, "year", renewals=1)
    return {
        name: Figure(Range.exact(float(price.amount.amount)), A100) for name, price in found.items()
    }


def _extras(bench: Bench) -> Mapping[str, Figure]:
    return {
        add_on.kind: Figure(Range.exact(float(add_on.price.amount)), add_on.id)
        for add_on in bench.offers[A100].add_ons
    }


def _t4(bench: Bench) -> Mapping[str, Figure]:
    return {
        form: _monthly(f"idc10000-t4-{form}")(bench)["cny_per_month"]
        for form in ("server", "cloud")
    }


def _h100(bench: Bench) -> Mapping[str, Figure]:
    price = period_price(bench.offers["idc10000-h100"], "hour")
    month = Decimal(730)
    ends = [float(end.amount * month) for end in (price.low, price.amount, price.high)]
    return {"whole_card_per_month": Figure(Range(*ends), "730 hours a month")}


def _whole_server(bench: Bench) -> Mapping[str, Figure]:
    price = period_price(bench.offers[A100], "month")
    ends = whole_node_price(bench.offers[A100], price)
    assert ends is not None
    one = price.amount.amount
    low, high = (float(end.amount / one) for end in ends)
    how = f"8 x A100 40G: {ends[0].amount:,} to {ends[1].amount:,} CNY a month"
    return {"times_one_card": Figure(Range(low, (low + high) / 2, high), how)}


PRICES: Mapping[str, Callable[[Bench], Mapping[str, Figure]]] = {
    "A-P1": _monthly("idc10000-3090"),
    "A-P2": _monthly("market-4090"),
    "A-P3": _ladder,
    "A-P4": _extras,
    "A-P5": _monthly("idc10000-a100-slice-4g"),
    "A-P6": _t4,
    "A-P7": _h100,
    "A-P8": _whole_server,
    "B-P1": _monthly("shenzhen-4090"),
    "B-P2": _monthly("home-4090"),
}
