"""Numbers and hints as people read them: the edge where bytes become GiB and seconds hours.

A core value is known by its name (`..._bytes`, `..._seconds`, `share`, `gpu_id`, `cost`), so one
function turns any hint into a sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from loracle import words
from loracle.domain.estimate import Range
from loracle.domain.plan import Hint
from loracle.units import DAY, HOUR, MINUTE, count, gib, money

_MONEY = (
    "cost",
    "total",
    "per_month",
    "instead",
    "saves",
    "left",
    "spent",
    "budget_amount",
    "hour_price",
)
_PERCENT = ("share", "cut_share")


@dataclass(frozen=True, slots=True)
class Speaker:
    """One reader's language, with the names of cards and offers that ids stand for."""

    language: str
    gpu_names: Mapping[str, str] = field(default_factory=dict)

    def text(self, message: str, **values: object) -> str:
        """The sentence of a message id."""
        return words.text(message, self.language, **values)

    def hint(self, hint: Hint) -> str:
        """The sentence of a hint, each number in the unit that its name calls for."""
        currency = str(hint.values.get("currency", "CNY"))
        if hint.id == "advice.no_dry_run":
            reason = {name: value for name, value in hint.values.items() if name != "message"}
            return self.text(hint.id, reason=self.text(str(hint.values["message"]), **reason))
        values = {
            name: self._value(name, value, currency) for name, value in hint.values.items()
        }  # fmt: skip
        if "num_gpus" in values and "gpu_id" in values:
            values["cards"] = self.cards(str(hint.values["gpu_id"]), int(values["num_gpus"]))
        if "slowdown" in hint.values:
            longer = float(str(hint.values["slowdown"])) >= 1
            values["direction"] = self.text(f"direction.{'longer' if longer else 'shorter'}")
        return self.text(hint.id, **values)

    def name(self, gpu_id: str) -> str:
        """`RTX 4090`: the card's name without the maker's family."""
        name = self.gpu_names.get(gpu_id, gpu_id)
        return name.removeprefix("GeForce ").removeprefix("Tesla ")

    def cards(self, gpu_id: str, num_gpus: int) -> str:
        """`RTX 4090`, `2 x RTX 4090`."""
        name = self.name(gpu_id)
        return name if num_gpus == 1 else f"{num_gpus} x {name}"

    def duration(self, seconds: float) -> str:
        """`40 s`, `24 min`, `3.8 h`, `3.2 days`."""
        for limit, unit, name in (
            (2 * MINUTE, 1, "seconds"),
            (99.5 * MINUTE, MINUTE, "minutes"),
            (72 * HOUR, HOUR, "hours"),
        ):
            if seconds < limit:
                digits = 1 if unit == HOUR and seconds < 99.5 * HOUR else 0
                return self.text(f"unit.{name}", n=f"{seconds / unit:,.{digits}f}")
        return self.text("unit.days", n=f"{seconds / DAY:,.1f}")

    def period(self, period: str) -> str:
        """`h`, `month`: what stands behind the slash of a price."""
        return self.text(f"period.{period}")

    def price(self, amount: object, currency: str, period: str) -> str:
        """`¥2,240/month`."""
        value = Decimal(str(amount))
        digits = 2 if value != value.to_integral_value() else 0
        return f"{money(value, currency, digits)}/{self.period(period)}"

    def _value(self, name: str, value: object, currency: str) -> object:
        if name.endswith("_bytes"):
            return gib(float(str(value)))
        if name == "seconds" or name.endswith("_seconds"):
            return self.duration(float(str(value)))
        if name in _PERCENT:
            return _percent(float(str(value)))
        if name in ("gain", "slowdown"):
            return f"{abs(float(str(value)) - 1):.0%}"
        if name == "gpu_id":
            return self.name(str(value))
        if name in _MONEY:
            return money(Decimal(str(value)), currency)
        if name == "set":
            return " ".join(f"--set {one}" for one in _list(value))
        if name == "knobs":
            return self.text("knob.and").join(self.text(f"knob.{one}") for one in _list(value))
        if name == "reasons":
            return self.text("knob.and").join(self.text(f"{one}") for one in _list(value))
        if name in ("term", "period"):
            return self.text(f"by.{value}")
        if isinstance(value, list | tuple):
            return ", ".join(str(one) for one in value)
        if isinstance(value, float):
            return count(value) if value >= 100 else f"{value:,.1f}"
        return f"{value:,}" if type(value) is int else value


def span(values: Range, unit: float, digits: int = 1) -> str:
    """`(22.4 - 25.0)` of a range in multiples of a unit."""
    return f"({values.low / unit:,.{digits}f} - {values.high / unit:,.{digits}f})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]
