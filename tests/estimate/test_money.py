"""The price ladder, whole-term billing and break-even: figures by hand, laws by property."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle.domain.estimate import Range
from loracle.domain.gpu import Node
from loracle.domain.money import FxRate, Money
from loracle.domain.offer import HOURS_IN_TERM, TERMS, AddOn, Discount, Offer, Price
from loracle.errors import InputError
from loracle.estimate.money import (
    break_even_hours,
    is_stale,
    job_cost,
    offered_terms,
    period_price,
    whole_node_price,
)

RATES = (FxRate("USD", "CNY", Decimal("7.2"), "2026-11-30", "test"),)
HOUR = 3600.0


def cny(amount):
    return Money(Decimal(str(amount)), "CNY")


# The A100 40G of the article: A-P3 with the extras of A-P4.
A100 = Offer(
    id="a100",
    provider="p",
    node=Node(gpu_id="a100-40gb-pcie"),
    prices=(Price(term="month", amount=cny(2800), period="month"),),
    discounts=(
        Discount(kind="term", terms=("quarter",), percent=Decimal(5)),
        Discount(kind="term", terms=("year",), percent=Decimal(20)),
        Discount(kind="loyalty", amount=Decimal(100), per_renewal=True, max_times=1),
    ),
    add_ons=(
        AddOn(id="disk", kind="disk", price=cny(300)),
        AddOn(id="cores", kind="cores", price=cny(400)),
    ),
    whole_node_factor=(Decimal(5), Decimal(7)),
    min_term="month",
    as_of="2026-11-01",
)
HOURLY = replace(
    A100,
    id="hourly",
    prices=(Price(term="hour", amount=cny("2.72"), period="hour"),),
    discounts=(),
    add_ons=(),
    min_term="hour",
    bills_whole_terms=False,
)


def steps(price):
    return [(step.id.rpartition(".")[2], str(step.after.amount)) for step in price.steps]


@pytest.mark.parametrize(
    ("term", "renewals", "amount", "billing"),
    [
        ("month", 0, "2800.00", "2800.00"),
        ("month", 1, "2700.00", "2700.00"),
        ("quarter", 0, "2660.00", "7980.00"),
        ("quarter", 1, "2560.00", "7680.00"),
        ("year", 0, "2240.00", "26880.00"),
        ("year", 1, "2140.00", "25680.00"),
        ("year", 5, "2140.00", "25680.00"),  # one rebate, however often renewed
    ],
)
def test_the_articles_prices(term, renewals, amount, billing):
    price = period_price(A100, term, renewals=renewals)
    assert (str(price.amount.amount), price.period) == (amount, "month")
    assert str(price.billing_total.amount) == billing


def test_the_ladder_is_told_step_by_step():
    price = period_price(A100, "year", renewals=1, add_ons=("disk",))
    assert steps(price) == [
        ("list", "2800.00"), ("term", "2240.00"), ("loyalty", "2140.00"), ("add_on", "2440.00"),
    ]  # fmt: skip


def test_a_percent_and_an_amount_depend_on_their_order():
    percent = Discount(kind="term", percent=Decimal(20))
    amount = Discount(kind="coupon", amount=Decimal(100))
    first = replace(A100, discounts=(percent, amount))
    second = replace(A100, discounts=(amount, percent))
    assert period_price(first, "month").amount == cny("2140.00")  # 2800 x 0.8 - 100
    assert period_price(second, "month").amount == cny("2160.00")  # (2800 - 100) x 0.8


def test_a_coupon_comes_before_the_loyalty_rebate():
    coupon = Discount(kind="coupon", percent=Decimal(50))
    price = period_price(A100, "year", renewals=1, coupons=(coupon,))
    assert steps(price)[2:] == [("coupon", "1120.00"), ("loyalty", "1020.00")]


def test_a_rebate_per_renewal_stops_at_its_floor_and_its_cap():
    rebate = Discount(kind="loyalty", amount=Decimal(100), per_renewal=True, floor=Decimal(2550))
    offer = replace(A100, discounts=(rebate,))
    prices = [period_price(offer, "month", renewals=n).amount.amount for n in range(5)]
    assert prices == [2800, 2700, 2600, 2550, 2550]
    capped = replace(A100, discounts=(replace(rebate, floor=None, max_times=2),))
    assert period_price(capped, "month", renewals=9).amount == cny("2600.00")


def test_terms_that_an_offer_has_not():
    assert offered_terms(A100) == ("month", "quarter", "year")
    for term in ("hour", "week", "century"):
        with pytest.raises(InputError) as caught:
            period_price(A100, term)
        assert caught.value.code == "E018"
        assert caught.value.values["terms"] == "month, quarter, year"


def test_what_else_an_offer_cannot_have():
    with pytest.raises(InputError, match="E018"):
        period_price(A100, "month", add_ons=("pony",))
    with pytest.raises(InputError, match="E018"):
        period_price(A100, "month", renewals=-1)


def test_a_month_is_billed_whole():
    # 10 hours cost a month; 731 hours cost two
    for hours, months in ((10, 1), (730, 1), (731, 2)):
        cost = cost_of(A100, "month", hours)
        assert cost.billed_periods == Range.exact(months)
        assert cost.likely == cny(f"{2800 * months}.00")
    assert cost_of(A100, "year", 10).likely == cny("26880.00")


def test_hours_are_billed_as_used_or_whole():
    assert cost_of(HOURLY, "hour", 10.5).likely == cny("28.56")  # 10.5 x 2.72
    whole = replace(HOURLY, bills_whole_terms=True)
    assert cost_of(whole, "hour", 10.5).likely == cny("29.92")  # 11 x 2.72


def test_the_shortest_rental_is_paid_even_if_not_used():
    daily = replace(
        HOURLY,
        prices=(Price(term="day", amount=cny(50), period="day"),),
        min_term="day",
    )
    assert cost_of(daily, "day", 1).likely == cny("50.00")


def test_a_range_of_time_and_of_price_gives_a_range_of_cost():
    rough = replace(HOURLY, price_low=cny(2), price_high=cny(3))
    cost = job_cost(
        rough, "hour", Range(9 * HOUR, 10 * HOUR, 12 * HOUR),
        rates=(), currency="CNY", today="2026-11-30",
    )  # fmt: skip
    assert (cost.low, cost.likely, cost.high) == (cny("18.00"), cny("27.20"), cny("36.00"))


def test_an_add_on_is_its_own_line_and_lines_add_up():
    cost = job_cost(
        A100, "year", Range.exact(HOUR), rates=(), currency="CNY", today="2026-11-30",
        add_ons=("disk", "cores"),
    )  # fmt: skip
    assert dict(cost.lines) == {
        "money.line.rent": cny("26880.00"),
        "money.line.add_ons": cny("8400.00"),
    }
    assert cost.likely == cny("35280.00")


def test_conversion_takes_the_dated_rate_or_refuses():
    dollars = replace(
        HOURLY, prices=(Price(term="hour", amount=Money(Decimal("0.5"), "USD"), period="hour"),)
    )
    cost = job_cost(
        dollars, "hour", Range.exact(10 * HOUR), rates=RATES, currency="CNY", today="2026-11-30"
    )
    assert cost.likely == cny("36.00")  # 10 x 0.5 x 7.2
    with pytest.raises(InputError) as caught:
        job_cost(dollars, "hour", Range.exact(HOUR), rates=(), currency="CNY", today="2026-11-30")
    assert caught.value.code == "E017"


def test_break_even_between_hour_and_month():
    by_hour, by_month = period_price(HOURLY, "hour"), period_price(A100, "month")
    assert break_even_hours(by_hour, by_month) is None  # 2800 / 2.72 = 1029 h > 730 h
    cheap = replace(A100, prices=(Price(term="month", amount=cny(1360), period="month"),))
    assert break_even_hours(by_hour, period_price(cheap, "month")) == 500
    assert break_even_hours(by_hour, period_price(cheap, "year")) == 400


def test_break_even_across_currencies():
    dollars = replace(
        HOURLY, prices=(Price(term="hour", amount=Money(Decimal(1), "USD"), period="hour"),)
    )
    hours = break_even_hours(
        period_price(dollars, "hour"), period_price(A100, "month"), rates=RATES
    )
    assert round(hours, 6) == round(Decimal(2800) / Decimal("7.2"), 6)


def test_a_whole_server_is_five_to_seven_cards():
    low, high = whole_node_price(A100, period_price(A100, "month"))
    assert (low, high) == (cny("14000.00"), cny("19600.00"))
    assert (
        whole_node_price(replace(A100, whole_node_factor=None), period_price(A100, "month")) is None
    )


@pytest.mark.parametrize(
    ("today", "stale"), [("2026-11-30", False), ("2026-12-01", False), ("2026-12-02", True)]
)
def test_a_price_is_stale_after_thirty_days(today, stale):
    assert is_stale(A100, today) is stale


def test_a_quote_past_its_last_day_is_stale():
    assert is_stale(replace(A100, valid_until="2026-11-15"), "2026-11-16")
    assert not is_stale(replace(A100, valid_until="2026-11-15"), "2026-11-15")


def cost_of(offer, term, hours):
    return job_cost(
        offer, term, Range.exact(hours * HOUR), rates=(), currency="CNY", today="2026-11-30"
    )


# ------------------------------------------------------------------ laws

amounts = st.decimals(min_value="0.01", max_value="99999", places=2)
percents = st.decimals(min_value="0", max_value="99.9", places=1)
discounts = st.builds(
    Discount,
    kind=st.sampled_from(["term", "coupon", "member", "loyalty"]),
    percent=percents,
    amount=st.decimals(min_value="0", max_value="5000", places=2),
    per_renewal=st.booleans(),
    max_times=st.none() | st.integers(1, 5),
    floor=st.none() | st.decimals(min_value="0", max_value="5000", places=2),
)
extras = st.lists(amounts, max_size=4).map(
    lambda prices: tuple(
        AddOn(id=f"x{index}", kind="other", price=cny(price)) for index, price in enumerate(prices)
    )
)


@st.composite
def offers(draw):
    term = draw(st.sampled_from(TERMS))
    return replace(
        A100,
        prices=(Price(term=term, amount=cny(draw(amounts)), period=term),),
        discounts=tuple(draw(st.lists(discounts, max_size=5))),
        add_ons=draw(extras),
        min_term=term,
        bills_whole_terms=draw(st.booleans()),
    )


@given(offers(), st.integers(0, 6))
def test_no_price_is_negative_and_no_step_goes_up_but_an_add_on(offer, renewals):
    price = period_price(offer, offer.min_term, renewals=renewals)
    assert price.amount.amount >= 0
    assert price.low.amount <= price.amount.amount <= price.high.amount
    assert all(step.change.amount <= 0 for step in price.steps[1:])


@given(offers(), st.integers(0, 6))
def test_the_steps_add_up_to_the_price(offer, renewals):
    names = [one.id for one in offer.add_ons]
    price = period_price(offer, offer.min_term, renewals=renewals, add_ons=names)
    assert sum(step.change.amount for step in price.steps) == price.amount.amount


@given(offers(), st.integers(0, 6))
def test_add_ons_are_additive(offer, renewals):
    term = offer.min_term
    names = [one.id for one in offer.add_ons]
    bare = period_price(offer, term, renewals=renewals).amount.amount
    each = [
        period_price(offer, term, renewals=renewals, add_ons=[name]).amount.amount - bare
        for name in names
    ]
    together = period_price(offer, term, renewals=renewals, add_ons=names).amount.amount - bare
    assert sum(each) == together


@given(offers(), st.integers(0, 5))
def test_one_more_renewal_never_costs_more(offer, renewals):
    now = period_price(offer, offer.min_term, renewals=renewals).amount
    later = period_price(offer, offer.min_term, renewals=renewals + 1).amount
    assert later <= now


@given(offers())
def test_no_discount_leads_under_its_floor(offer):
    floors = [one.floor for one in offer.discounts if one.floor]
    price = period_price(offer, offer.min_term, renewals=3)
    if len(offer.discounts) == 1 and floors:
        listed = price.list_amount.amount
        assert price.amount.amount >= min(floors[0], listed)


seconds = st.floats(min_value=1, max_value=3e8)


@given(offers(), seconds, seconds)
def test_a_longer_job_never_costs_less(offer, one, other):
    short, long = sorted((one, other))
    assert _likely(offer, short) <= _likely(offer, long)


@given(offers(), seconds)
def test_whole_terms_are_whole(offer, job):
    whole = replace(offer, bills_whole_terms=True)
    cost = job_cost(
        whole, offer.min_term, Range.exact(job), rates=(), currency="CNY", today="2026-11-30"
    )
    periods = cost.billed_periods.likely
    assert periods == int(periods) >= 1
    term_seconds = HOURS_IN_TERM[offer.min_term] * HOUR
    assert (periods - 1) * term_seconds < job * (1 + 1e-12) <= periods * term_seconds * (1 + 1e-9)


@given(offers(), seconds)
def test_lines_add_up_to_the_cost(offer, job):
    cost = job_cost(
        offer, offer.min_term, Range.exact(job), rates=(), currency="CNY", today="2026-11-30",
        add_ons=[one.id for one in offer.add_ons],
    )  # fmt: skip
    assert sum((part.amount for _, part in cost.lines), Decimal(0)) == cost.likely.amount
    assert cost.low <= cost.likely <= cost.high


def _likely(offer, job):
    return job_cost(
        offer, offer.min_term, Range.exact(job), rates=(), currency="CNY", today="2026-11-30"
    ).likely
