"""Rates: the shipped one, the user's own, and files that are none."""

import datetime
from decimal import Decimal

import pytest

from loracle.catalog.fx import RateRow, load_rates, set_rate
from loracle.domain.money import Money, convert
from loracle.errors import CatalogError


def usd(rate, day="2026-11-30"):
    return RateRow(
        base="USD", quote="CNY", rate=Decimal(rate), date=datetime.date.fromisoformat(day),
        source="bank",
    )  # fmt: skip


def test_a_shipped_rate_says_that_it_is_round(tmp_path):
    (rate,) = load_rates(user_file=tmp_path / "fx.yaml")
    assert (rate.base, rate.quote, rate.rate) == ("USD", "CNY", Decimal("7.2"))
    assert "not a market rate" in rate.source


def test_the_users_rate_wins_in_either_direction(tmp_path):
    path = tmp_path / "fx.yaml"
    set_rate(usd("7.1"), user_file=path)
    set_rate(usd("7.15"), user_file=path)
    rates = load_rates(user_file=path)
    assert [(one.rate, one.date) for one in rates] == [(Decimal("7.15"), "2026-11-30")]
    assert convert(Money.of(2, "USD"), "CNY", rates) == Money.of("14.30", "CNY")
    inverse = RateRow(
        base="CNY", quote="USD", rate=Decimal("0.14"), date=datetime.date(2026, 11, 30), source="x"
    )
    set_rate(inverse, user_file=path)
    assert [(one.base, one.rate) for one in load_rates(user_file=path)] == [
        ("CNY", Decimal("0.14"))
    ]


def test_other_currencies_stand_beside(tmp_path):
    path = tmp_path / "fx.yaml"
    euro = usd("8.1").model_copy(update={"base": "EUR"})
    set_rate(euro, user_file=path)
    assert {one.base for one in load_rates(user_file=path)} == {"EUR", "USD"}


def test_one_currency_has_no_rate_to_itself(tmp_path):
    same = usd("1").model_copy(update={"quote": "USD"})
    with pytest.raises(CatalogError, match="E035"):
        set_rate(same, user_file=tmp_path / "fx.yaml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "rates: 3", "rates: [{base: USD}]", "[", "x: 1"])
def test_a_broken_file_is_one_error(tmp_path, text):
    path = tmp_path / "fx.yaml"
    path.write_text(text)
    with pytest.raises(CatalogError, match="E035"):
        load_rates(user_file=path)
    with pytest.raises(CatalogError, match="E035"):
        set_rate(usd("7"), user_file=path)
    assert path.read_text() == text
