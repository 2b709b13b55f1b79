"""Price and budget of a run in one currency; the shipped rate is 7.2 CNY a dollar."""

from decimal import Decimal

import pytest

from loracle.domain.money import Money
from loracle.errors import InputError
from loracle.jobs.train.budget import agreed_money

NO_OPTIONS = {"currency": "CNY", "price_per_hour": None, "budget": None}
IN_CNY = {"currency": "CNY", "price_per_hour": "2.5", "budget": "200"}


@pytest.fixture(autouse=True)
def _no_own_rates(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_price_says_which_currency_the_run_counts_in():
    assert agreed_money(Money.of(2, "CNY"), Money.of(5, "USD"), NO_OPTIONS) == {
        "currency": "CNY", "price_per_hour": Decimal(2), "budget": Decimal("36.0"),
    }  # fmt: skip
    assert agreed_money(Money.of("0.5", "EUR"), Money.of(9, "EUR"), {}) == {
        "currency": "EUR", "price_per_hour": Decimal("0.5"), "budget": Decimal(9),
    }  # fmt: skip


def test_a_resumed_run_goes_on_counting_in_its_own_currency():
    assert agreed_money(None, Money.of(300, "CNY"), IN_CNY) == {
        "currency": "CNY", "budget": Decimal(300),
    }  # fmt: skip
    assert agreed_money(Money.of(1, "USD"), None, IN_CNY) == {
        "currency": "CNY", "price_per_hour": Decimal("7.2"),
    }  # fmt: skip
    assert agreed_money(None, None, IN_CNY) == {}


def test_a_budget_that_nothing_can_be_held_against_is_refused():
    with pytest.raises(InputError) as alone:
        agreed_money(None, Money.of(5, "CNY"), NO_OPTIONS)
    assert (alone.value.code, alone.value.message) == ("E013", "error.train.budget_alone")
    with pytest.raises(InputError) as unlinked:
        agreed_money(Money.of(2, "CNY"), Money.of(5, "XYZ"), NO_OPTIONS)
    assert unlinked.value.code == "E017"
    assert unlinked.value.values == {"base": "XYZ", "quote": "CNY"}
