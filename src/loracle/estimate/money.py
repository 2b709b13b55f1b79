"""What a rental costs: the price ladder of an offer, whole terms billed, hour against month.

Exact arithmetic throughout: `Decimal`, rounded half up to the cent after every step, as an
invoice shows it, so that the printed steps add up to the printed price. Conversions need a dated
rate. No clock is read here: `today` is an argument.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from loracle.domain.estimate import Range
from loracle.domain.money import FxRate, Money, convert
from loracle.domain.offer import HOURS_IN_TERM, TERMS, AddOn, Discount, Offer, Price
from loracle.domain.plan import CostEstimate
from loracle.errors import InputError

STALE_DAYS = 30  # a price older than this is said to be old
HOURS_IN_MONTH = Decimal(HOURS_IN_TERM["month"])
_AFTER_COUPONS = ("member", "loyalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung of the price ladder: what it changes, and the price after it.

    `id` is a message id (`money.step.list`, `.term`, `.coupon`, `.member`, `.loyalty`,
    `.add_on`); `values` are the numbers of its sentence.
    """

    id: str
    change: Money
    after: Money
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodPrice:
    """An offer's price under one term: `amount` per `period`, and the steps that lead to it.

    `billing_total` is what one term costs: 12 months of a yearly term that is priced by the
    month. `low` and `high` bound the amount where the offer itself is only known as a range.
    """

    offer_id: str
    term: str
    period: str
    amount: Money
    list_amount: Money
    low: Money
    high: Money
    periods_in_term: Decimal
    renewals: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def billing_total(self) -> Money:
        """What is paid at once for one term."""
        return (self.amount * self.periods_in_term).rounded()

    @property
    def per_month(self) -> Money:
        """The same price for a month of 730 hours, whatever the period."""
        return self.amount * (HOURS_IN_MONTH / Decimal(HOURS_IN_TERM[self.period]))


def offered_terms(offer: Offer) -> tuple[str, ...]:
    """The terms an offer can be had for, shortest first: priced, or named by a discount."""
    named = {price.term for price in offer.prices}
    named |= {term for discount in offer.discounts for term in discount.terms}
    shortest = TERMS.index(offer.min_term)
    return tuple(term for term in TERMS[shortest:] if term in named)


def period_price(
    offer: Offer,
    term: str,
    *,
    renewals: int = 0,
    add_ons: Sequence[str] = (),
    coupons: Sequence[Discount] = (),
) -> PeriodPrice:
    """The price per period of `offer` under `term`, with every step.

    The offer's discounts apply in the order it lists them, each on what is left; `coupons` that
    the user holds come before member and loyalty steps. A rebate per renewal counts `renewals`
    times, up to its `max_times`. No step leads under its `floor` or under nothing. `add_ons` are
    ids of the offer's extras, added after all discounts (the articles' prices know no discount on
    extras). Raises InputError E018 for a term, add-on or number of renewals it cannot have.
    """
    base = _base_price(offer, term)
    if renewals < 0:
        raise InputError("error.offer.renewals", code="E018", renewals=renewals)
    extras = tuple(_add_on(offer, name) for name in add_ons)
    ladder = _in_order(offer.discounts, coupons)
    steps = _ladder(base, ladder, extras, term, renewals)
    ends = [
        _ladder(_with_amount(base, end), ladder, extras, term, renewals)[-1].after
        for end in (offer.price_low, offer.price_high)
        if end is not None
    ]
    amount = steps[-1].after
    return PeriodPrice(
        offer_id=offer.id,
        term=term,
        period=base.period,
        amount=amount,
        list_amount=base.amount,
        low=min([amount, *ends], key=_number),
        high=max([amount, *ends], key=_number),
        periods_in_term=Decimal(HOURS_IN_TERM[term]) / Decimal(HOURS_IN_TERM[base.period]),
        renewals=renewals,
        steps=steps,
    )


def job_cost(
    offer: Offer,
    term: str,
    seconds: Range,
    *,
    rates: tuple[FxRate, ...],
    currency: str,
    today: str,
    renewals: int = 0,
    add_ons: Sequence[str] = (),
    coupons: Sequence[Discount] = (),
) -> CostEstimate:
    """What a job of `seconds` costs under one offer and term, in `currency`.

    Whole terms are billed where the offer bills them (`bills_whole_terms`), and never less than
    its shortest term; otherwise the seconds used. The low end takes the short time and the low
    price, the high end the long time and the high price. Raises InputError E017 without a rate,
    E018 for a term that the offer has not.
    """
    price = period_price(offer, term, renewals=renewals, add_ons=add_ons, coupons=coupons)
    billed = tuple(
        _billed_periods(offer, price, end) for end in (seconds.low, seconds.likely, seconds.high)
    )
    totals = tuple(
        convert(unit * periods, currency, rates).rounded()
        for unit, periods in zip((price.low, price.amount, price.high), billed, strict=True)
    )
    return CostEstimate(
        offer_id=offer.id,
        term=term,
        unit_price=price.amount,
        period=price.period,
        billed_periods=Range(*(float(periods) for periods in billed)),
        low=totals[0],
        likely=totals[1],
        high=totals[2],
        lines=_lines(price, billed[1], totals[1], rates),
        stale=is_stale(offer, today),
        estimated=offer.provenance == "estimated",
    )


def break_even_hours(
    by_use: PeriodPrice, committed: PeriodPrice, *, rates: tuple[FxRate, ...] = ()
) -> Decimal | None:
    """Hours of use a month from which the longer commitment is the cheaper one.

    h* = (committed price a month) / (price by use an hour). None where it never pays within the
    730 hours of a month, or where using costs nothing. Both prices should hold the same extras.
    """
    hourly = by_use.amount.amount / Decimal(HOURS_IN_TERM[by_use.period])
    if hourly <= 0:
        return None
    fixed = convert(committed.per_month, by_use.amount.currency, rates).amount
    hours = fixed / hourly
    return hours if hours <= HOURS_IN_MONTH else None


def whole_node_price(offer: Offer, price: PeriodPrice) -> tuple[Money, Money] | None:
    """Low and high price of the whole server per period, where the offer states a factor (A-P8).

    An 8-card server is asked for 5 to 7 times one card's price, not 8 times.
    """
    if offer.whole_node_factor is None:
        return None
    low, high = offer.whole_node_factor
    return (price.low * low).rounded(), (price.high * high).rounded()


def is_stale(offer: Offer, today: str) -> bool:
    """Whether the price is older than 30 days or past its stated end on `today` (ISO dates)."""
    if offer.valid_until is not None and offer.valid_until < today:
        return True
    if not offer.as_of:
        return True
    age = datetime.date.fromisoformat(today) - datetime.date.fromisoformat(offer.as_of)
    return age.days > STALE_DAYS


def _base_price(offer: Offer, term: str) -> Price:
    """The price that the ladder starts from: the term's own, or the longest shorter one's."""
    terms = offered_terms(offer)
    if term not in terms:
        raise InputError(
            "error.offer.term",
            code="E018",
            hint="hint.offer.term",
            offer=offer.id,
            term=term,
            terms=", ".join(terms),
        )
    fitting = [price for price in offer.prices if TERMS.index(price.term) <= TERMS.index(term)]
    return max(fitting or offer.prices, key=lambda price: TERMS.index(price.term))


def _with_amount(price: Price, amount: Money) -> Price:
    return Price(term=price.term, amount=amount, period=price.period)


def _add_on(offer: Offer, name: str) -> AddOn:
    for add_on in offer.add_ons:
        if add_on.id == name:
            return add_on
    raise InputError(
        "error.offer.add_on",
        code="E018",
        hint="hint.offer.add_on" if offer.add_ons else None,
        offer=offer.id,
        add_on=name,
        add_ons=", ".join(add_on.id for add_on in offer.add_ons),
    )


def _in_order(listed: Sequence[Discount], coupons: Sequence[Discount]) -> tuple[Discount, ...]:
    cut = next(
        (index for index, one in enumerate(listed) if one.kind in _AFTER_COUPONS), len(listed)
    )
    return (*listed[:cut], *coupons, *listed[cut:])


def _ladder(
    base: Price,
    discounts: Sequence[Discount],
    extras: Sequence[AddOn],
    term: str,
    renewals: int,
) -> tuple[Step, ...]:
    start = base.amount.rounded()
    steps = [Step(id="money.step.list", change=start, after=start, values={"period": base.period})]
    for discount in discounts:
        times = _times(discount, term, renewals)
        if times:
            steps.append(_discount_step(discount, steps[-1].after, times, term))
    for extra in extras:
        price = _per_period(extra, base.period)
        steps.append(
            Step(
                id="money.step.add_on",
                change=price,
                after=steps[-1].after + price,
                values={"add_on": extra.id},
            )
        )
    return tuple(steps)


def _times(discount: Discount, term: str, renewals: int) -> int:
    if discount.terms and term not in discount.terms:
        return 0
    if not discount.per_renewal:
        return 1
    return renewals if discount.max_times is None else min(renewals, discount.max_times)


def _discount_step(discount: Discount, before: Money, times: int, term: str) -> Step:
    """One discount: percent of what is left and a fixed amount, `times` over, down to the floor."""
    left = before.amount
    for _ in range(times):
        left = left * (1 - discount.percent / 100) - discount.amount
        if left <= 0:
            break
    lowest = min(discount.floor or Decimal(0), before.amount)
    after = Money(max(left, lowest), before.currency).rounded()
    return Step(
        id=f"money.step.{discount.kind}",
        change=after - before,
        after=after,
        values={
            "percent": discount.percent,
            "amount": discount.amount,
            "times": times,
            "term": term,
            "at_floor": left < lowest,
        },
    )


def _per_period(extra: AddOn, period: str) -> Money:
    ratio = Decimal(HOURS_IN_TERM[period]) / Decimal(HOURS_IN_TERM[extra.period])
    return (extra.price * ratio).rounded()


def _billed_periods(offer: Offer, price: PeriodPrice, seconds: float) -> Decimal:
    period_seconds = HOURS_IN_TERM[price.period] * 3600
    term_seconds = HOURS_IN_TERM[price.term] * 3600
    if offer.bills_whole_terms:
        return Decimal(max(1, math.ceil(seconds / term_seconds))) * price.periods_in_term
    shortest = HOURS_IN_TERM[offer.min_term] * 3600 if offer.min_term != "hour" else 0
    if price.term not in ("hour", "day"):
        shortest = max(shortest, term_seconds)
    return Decimal(str(max(seconds, shortest) / period_seconds))


def _lines(
    price: PeriodPrice, periods: Decimal, total: Money, rates: tuple[FxRate, ...]
) -> tuple[tuple[str, Money], ...]:
    """Rent and extras apart; their sum is the total to the cent."""
    extras = sum(
        (step.change.amount for step in price.steps if step.id == "money.step.add_on"), Decimal(0)
    )
    if not extras:
        return (("money.line.rent", total),)
    part = convert(Money(extras * periods, price.amount.currency), total.currency, rates).rounded()
    return (("money.line.rent", total - part), ("money.line.add_ons", part))


def _number(money: Money) -> Decimal:
    return money.amount
