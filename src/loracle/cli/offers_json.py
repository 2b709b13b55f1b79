"""Offers and quotes as JSON: base units, amounts as decimal text, never translated."""

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal

from loracle.domain.money import FxRate, Money
from loracle.domain.offer import AddOn, Discount, Offer
from loracle.estimate.money import (
    PeriodPrice,
    is_stale,
    offered_terms,
    period_price,
    whole_node_price,
)

LIST_SCHEMA = "loracle.offers/1"
QUOTE_SCHEMA = "loracle.quote/1"


def list_document(
    offers: Sequence[Offer], rates: tuple[FxRate, ...], today: str
) -> dict[str, object]:
    """All offers with the price of every term, and the rates that a conversion would take."""
    return {
        "schema": LIST_SCHEMA,
        "date": today,
        "rates": [{**asdict(rate), "rate": str(rate.rate)} for rate in rates],
        "offers": [offer_document(offer, today) for offer in offers],
    }


def offer_document(offer: Offer, today: str) -> dict[str, object]:
    """One offer as a whole."""
    return {
        "id": offer.id,
        "provider": offer.provider,
        "region": offer.region,
        "node": asdict(offer.node),
        "terms": [_term(offer, term) for term in offered_terms(offer)],
        "discounts": [_discount(discount) for discount in offer.discounts],
        "add_ons": [_add_on(add_on) for add_on in offer.add_ons],
        "price_low": _text(offer.price_low),
        "price_high": _text(offer.price_high),
        "whole_node_factor": [str(one) for one in offer.whole_node_factor or ()] or None,
        "min_term": offer.min_term,
        "bills_whole_terms": offer.bills_whole_terms,
        "refund": offer.refund,
        "held_when_stopped": offer.held_when_stopped,
        "provenance": offer.provenance,
        "estimated": offer.provenance == "estimated",
        "as_of": offer.as_of,
        "valid_until": offer.valid_until,
        "stale": is_stale(offer, today),
        "source": offer.source,
        "claim": offer.claim,
        "risk": offer.risk,
        "notes": offer.notes,
    }


def quote_document(offer: Offer, price: PeriodPrice, today: str) -> dict[str, object]:
    """The ladder of one offer under one term, step by step, and what one billing comes to."""
    whole = whole_node_price(offer, price)
    return {
        "schema": QUOTE_SCHEMA,
        "offer_id": offer.id,
        "provider": offer.provider,
        "gpu_id": offer.node.gpu_id,
        "num_gpus": offer.node.num_gpus,
        "term": price.term,
        "renewals": price.renewals,
        "currency": price.amount.currency,
        "period": price.period,
        "list_amount": _text(price.list_amount),
        "steps": [
            {
                "id": step.id.removeprefix("money.step."),
                "change": _text(step.change),
                "after": _text(step.after),
                **{
                    key: str(value) if isinstance(value, Decimal) else value
                    for key, value in step.values.items()
                },
            }
            for step in price.steps
        ],
        "amount": _text(price.amount),
        "low": _text(price.low),
        "high": _text(price.high),
        "per_month": _text(price.per_month),
        "periods_in_term": str(price.periods_in_term.normalize().to_integral_value())
        if price.periods_in_term == price.periods_in_term.to_integral_value()
        else str(price.periods_in_term),
        "billing_total": _text(price.billing_total),
        "whole_node": None if whole is None else {"low": _text(whole[0]), "high": _text(whole[1])},
        "provenance": offer.provenance,
        "estimated": offer.provenance == "estimated",
        "as_of": offer.as_of,
        "stale": is_stale(offer, today),
        "source": offer.source,
        "claim": offer.claim,
        "risk": offer.risk,
    }


def _term(offer: Offer, term: str) -> dict[str, object]:
    price = period_price(offer, term)
    return {
        "term": term,
        "period": price.period,
        "amount": _text(price.amount),
        "currency": price.amount.currency,
        "billing_total": _text(price.billing_total),
    }


def _discount(discount: Discount) -> dict[str, object]:
    plain = asdict(discount)
    for key in ("percent", "amount", "floor"):
        plain[key] = None if plain[key] is None else str(plain[key])
    return plain


def _add_on(add_on: AddOn) -> dict[str, object]:
    return {**asdict(add_on), "price": _text(add_on.price), "currency": add_on.price.currency}


def _text(money: Money | None) -> str | None:
    """Two decimals, or more where the amount has them (0.0123 an hour)."""
    if money is None:
        return None
    amount = money.amount
    places = max(2, -int(amount.normalize().as_tuple().exponent))
    return f"{amount:.{min(places, 6)}f}"
