"""`loracle offers quote`: an offer's price under one term, every step of it."""

from typing import TYPE_CHECKING, Annotated

import typer

from loracle import words
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from decimal import Decimal

    from loracle.domain.money import Money
    from loracle.domain.offer import Discount, Offer
    from loracle.estimate.money import PeriodPrice


def quote(
    id: str = typer.Argument(..., help=words.text("help.offer.id")),  # noqa: A002
    term: str = typer.Option(None, "--term", help=words.text("help.offer.term")),
    renewals: int = typer.Option(0, "--renewals", help=words.text("help.offer.renewals")),
    add_on: Annotated[
        list[str] | None, typer.Option("--add-on", help=words.text("help.offer.add_on"))
    ] = None,
    coupon: Annotated[
        list[str] | None, typer.Option("--coupon", help=words.text("help.offer.coupon"))
    ] = None,
    member: str = typer.Option(None, "--member", help=words.text("help.offer.member")),
    against: str = typer.Option(None, "--against", help=words.text("help.offer.against")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """Print the price ladder of one offer."""
    from loracle.catalog.offers import find_offer
    from loracle.cli.today import today
    from loracle.estimate.money import offered_terms, period_price

    output = Output("json" if as_json else "quiet" if quiet else form)
    offer = find_offer(id)
    coupons = [_discount("coupon", text) for text in coupon or []]
    coupons += [_discount("member", member)] if member else []
    price = period_price(
        offer,
        term or offered_terms(offer)[0],
        renewals=renewals,
        add_ons=add_on or [],
        coupons=coupons,
    )
    hours = _break_even(price, against) if against else None
    if output.mode == "json":
        from loracle.cli.offers_json import quote_document

        document = quote_document(offer, price, today())
        if against:
            document["against"] = {
                "offer_id": against,
                "break_even_hours_per_month": None if hours is None else f"{hours:.1f}",
            }
        output.json(document)
    elif output.mode == "quiet":
        output.line(_amount(output, price))
    else:
        _show(output, offer, price, today())
        if against:
            key = "offers.break_even" if hours is not None else "offers.never_even"
            output.line(output.text(key, id=offer.id, other=against, hours=f"{hours or 0:,.0f}"))


def _discount(kind: str, text: str) -> "Discount":
    """`5%` or `100`: what a coupon or a membership takes off each period."""
    from decimal import Decimal, InvalidOperation

    from loracle.domain.offer import Discount
    from loracle.errors import InputError

    try:
        value = Decimal(text.strip().removesuffix("%"))
        share = text.strip().endswith("%")
        if not value.is_finite() or value <= 0 or (share and value >= 100):
            raise InvalidOperation
    except InvalidOperation as error:
        raise InputError(
            "error.offer.coupon", code="E018", hint="hint.offer.coupon", text=text
        ) from error
    return Discount(kind=kind, percent=value) if share else Discount(kind=kind, amount=value)


def _break_even(price: "PeriodPrice", against: str) -> "Decimal | None":
    from loracle.catalog.fx import load_rates
    from loracle.catalog.offers import find_offer
    from loracle.domain.offer import TERMS
    from loracle.estimate.money import break_even_hours, offered_terms, period_price

    other = find_offer(against)
    by_use = period_price(other, offered_terms(other)[0])
    pair = sorted((by_use, price), key=lambda one: TERMS.index(one.term))
    return break_even_hours(pair[0], pair[1], rates=load_rates())


def _billing_of(offer: "Offer") -> str:
    return "offers.billing_whole" if offer.bills_whole_terms else "offers.billing_used"


def _amount(output: Output, price: "PeriodPrice") -> str:
    from loracle.units import money

    period = output.text(f"offers.period.{price.period}")
    return f"{money(price.amount.amount, price.amount.currency, 2)}/{period}"


def _show(output: Output, offer: "Offer", price: "PeriodPrice", today: str) -> None:
    from loracle.catalog.gpus import find_gpu
    from loracle.estimate.money import is_stale, whole_node_price
    from loracle.units import money

    def plain(amount: "Money") -> str:
        sign = "-" if amount.amount < 0 else ""
        return sign + money(abs(amount.amount), amount.currency, 2)

    card = find_gpu(offer.node.gpu_id).name
    cards = f"{offer.node.num_gpus} x {card}" if offer.node.num_gpus > 1 else card
    output.line(output.text("offers.quote_title", provider=offer.provider, cards=cards))
    output.line()
    rows = []
    for step in price.steps:
        key = f"{step.id}_amount" if step.values.get("percent") == 0 else step.id
        sentence = output.text(key if words.has(key) else step.id, **step.values)
        change = "" if step.id == "money.step.list" else plain(step.change)
        rows.append([sentence, change, plain(step.after)])
    period = output.text(f"offers.period.{price.period}")
    output.table(
        [
            Column(output.text("offers.step")),
            Column(output.text("offers.change"), right=True),
            Column(output.text("offers.per_period", period=period), right=True),
        ],
        rows,
    )
    output.line()
    output.line(
        output.text(
            "offers.billing" if price.term != price.period else _billing_of(offer),
            term=output.text(f"offers.period.{price.term}"),
            total=plain(price.billing_total),
            periods=f"{price.periods_in_term.normalize():f}",
            period=period,
        )
    )
    if price.low != price.high:
        output.line(output.text("offers.range", low=plain(price.low), high=plain(price.high)))
    if whole := whole_node_price(offer, price):
        output.line(output.text("offers.whole_node", low=plain(whole[0]), high=plain(whole[1])))
    provenance = output.text(f"offers.provenance.{offer.provenance}")
    output.line(
        output.text("offers.from", provenance=provenance, date=offer.as_of, source=offer.source)
    )
    if offer.notes:
        output.line(output.text("offers.notes", notes=offer.notes))
    if offer.risk:
        output.warning(offer.risk)
    if is_stale(offer, today):
        output.hint("offers.some_old", count=1)
