"""Text units, in and out: the one place where `24GiB`, `12h` and `3000CNY/month` exist.

Inside, everything is in base units (bytes, seconds, Decimal money). GiB is 2**30 bytes, what
nvidia-smi and torch mean; GB is 10**9 bytes, what disk vendors mean.
"""

import re
from decimal import Decimal, InvalidOperation

from loracle.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
MINUTE, HOUR, DAY = 60, 3600, 86400

_SIZE = {
    "": 1, "b": 1, "k": KB, "kb": KB, "kib": KIB, "m": MB, "mb": MB, "mib": MIB,
    "g": GB, "gb": GB, "gib": GIB, "t": TB, "tb": TB, "tib": TIB,
}  # fmt: skip
_DURATION = {
    "s": 1, "sec": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "hour": HOUR, "hours": HOUR,
    "d": DAY, "day": DAY, "days": DAY, "w": 7 * DAY,
}  # fmt: skip
_COUNT = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "万": 10**4, "亿": 10**8}
_TERMS = {
    "": "total", "h": "hour", "hour": "hour", "d": "day", "day": "day", "week": "week",
    "month": "month", "mo": "month", "quarter": "quarter", "year": "year", "y": "year",
    "时": "hour", "天": "day", "周": "week", "月": "month", "季": "quarter", "年": "year",
}  # fmt: skip
_SYMBOLS = {"¥": "CNY", "￥": "CNY", "元": "CNY", "RMB": "CNY", "$": "USD", "€": "EUR"}


def _number(text: str, what: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([^\d\s]*)\s*", text)
    if match is None:
        raise InputError("error.unit", code="E011", hint=f"hint.unit.{what}", text=text)
    return float(match[1].replace(",", "").replace("_", "")), match[2].lower()


def parse_bytes(text: str) -> int:
    """Bytes of `24GiB`, `50GB`, `1048576`; raises InputError E011."""
    value, unit = _number(text, "size")
    if unit not in _SIZE:
        raise InputError("error.unit", code="E011", hint="hint.unit.size", text=text)
    return round(value * _SIZE[unit])


def parse_seconds(text: str) -> float:
    """Seconds of `12h`, `90min`, `2d`; a bare number is refused; raises InputError E011."""
    value, unit = _number(text, "duration")
    if unit not in _DURATION or value <= 0:
        raise InputError("error.unit", code="E011", hint="hint.unit.duration", text=text)
    return value * _DURATION[unit]


def parse_count(text: str) -> int:
    """A count such as `2000000`, `2M`, `200万`; raises InputError E011."""
    value, unit = _number(text, "count")
    if unit not in _COUNT or value < 1:
        raise InputError("error.unit", code="E011", hint="hint.unit.count", text=text)
    return round(value * _COUNT[unit])


def parse_money(text: str) -> tuple[Decimal, str, str]:
    """(amount, currency, period) of `3000CNY/month`, `¥3,000/月`, `$5`.

    The period is `total` where none is given. Raises InputError E011.
    """
    body, _, period = text.strip().partition("/")
    match = re.fullmatch(r"\s*([^\d\s]*)\s*([0-9][0-9,_]*\.?[0-9]*)\s*([^\d\s]*)\s*", body)
    term = _TERMS.get(period.strip().lower())
    if match is None or term is None or bool(match[1]) == bool(match[3]):
        raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text)
    name = (match[1] or match[3]).strip()
    currency = _SYMBOLS.get(name, _SYMBOLS.get(name.upper(), name.upper()))
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text)
    try:
        amount = Decimal(match[2].replace(",", "").replace("_", ""))
    except InvalidOperation as error:
        raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text) from error
    if amount <= 0:
        raise InputError("error.unit", code="E011", hint="hint.unit.money", text=text)
    return amount, currency, term


def gib(num_bytes: float, digits: int = 1) -> str:
    """`23.7 GiB`."""
    return f"{num_bytes / GIB:,.{digits}f} GiB"


def gb(num_bytes: float, digits: int = 1) -> str:
    """`50.0 GB` (decimal, for disks and downloads)."""
    return f"{num_bytes / GB:,.{digits}f} GB"


def count(value: float) -> str:
    """`39.0 M`, `8.19 B`, `1,190`."""
    for limit, suffix, digits in ((1e9, "B", 2), (1e6, "M", 1)):
        if value >= limit:
            return f"{value / limit:,.{digits}f} {suffix}"
    return f"{value:,.0f}"


CURRENCY_SIGN = {"CNY": "¥", "USD": "$", "EUR": "€"}


def money(amount: Decimal | float, currency: str, digits: int | None = None) -> str:
    """`¥2,240.00`, `$3.27`; from 1,000 up without cents unless digits are asked for."""
    value = Decimal(str(amount))
    places = digits if digits is not None else (0 if abs(value) >= 1000 else 2)
    sign = CURRENCY_SIGN.get(currency)
    number = f"{value:,.{places}f}"
    return f"{sign}{number}" if sign else f"{number} {currency}"
