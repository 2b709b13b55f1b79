"""Text units: hand-worked values and refusals."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loracle import units
from loracle.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GiB", 25_769_803_776), ("50GB", 50_000_000_000), ("1,024", 1024), ("1.5 MiB", 1_572_864)],
)
def test_sizes(text, expected):
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("12h", 43200), ("90min", 5400), ("2d", 172800)])
def test_durations(text, expected):
    assert units.parse_seconds(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("2M", 2_000_000), ("200万", 2_000_000), ("7", 7)])
def test_counts(text, expected):
    assert units.parse_count(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3000CNY/month", (Decimal(3000), "CNY", "month")),
        ("¥3,000/月", (Decimal(3000), "CNY", "month")),
        ("$5", (Decimal(5), "USD", "total")),
        ("1.20 EUR/h", (Decimal("1.20"), "EUR", "hour")),
    ],
)
def test_money(text, expected):
    assert units.parse_money(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bytes, "24 apples"),
        (units.parse_bytes, "-3GiB"),
        (units.parse_seconds, "12"),
        (units.parse_seconds, "0h"),
        (units.parse_count, "0.2"),
        (units.parse_money, "3000"),
        (units.parse_money, "CNY"),
        (units.parse_money, "5CNY/decade"),
        (units.parse_money, "0CNY"),
    ],
)
def test_refusals(parse, text):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.code == "E011"


@given(st.integers(min_value=0, max_value=10**15))
def test_plain_bytes_round_trip(num_bytes):
    assert units.parse_bytes(str(num_bytes)) == num_bytes


def test_money_text():
    assert units.money(Decimal(2240), "CNY", 2) == "¥2,240.00"
    assert units.money(Decimal("3.271"), "USD") == "$3.27"
    assert units.money(Decimal("3.271"), "JPY") == "3.27 JPY"
