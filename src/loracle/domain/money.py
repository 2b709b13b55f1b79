"""Money: an exact amount with its currency, and the dated rate that turns one into another."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from loracle.errors import InputError


@dataclass(frozen=True, slots=True)
class Money:
    """An exact amount in one currency (ISO 4217 code). Never a float."""

    amount: Decimal
    currency: str

    @classmethod
    def of(cls, amount: Decimal | int | str, currency: str) -> "Money":
        """Money from an exact number or its text."""
        return cls(Decimal(amount), currency)

    @classmethod
    def zero(cls, currency: str) -> "Money":
        """Nothing, in that currency."""
        return cls(Decimal(0), currency)

    def __add__(self, other: "Money") -> "Money":
        return Money(self.amount + self._same(other), self.currency)

    def __sub__(self, other: "Money") -> "Money":
        return Money(self.amount - self._same(other), self.currency)

    def __mul__(self, factor: Decimal | int) -> "Money":
        return Money(self.amount * factor, self.currency)

    def __lt__(self, other: "Money") -> bool:
        return self.amount < self._same(other)

    def __le__(self, other: "Money") -> bool:
        return self.amount <= self._same(other)

    def rounded(self, places: str = "0.01") -> "Money":
        """Rounded half up, as an invoice is."""
        return Money(self.amount.quantize(Decimal(places), ROUND_HALF_UP), self.currency)

    def _same(self, other: "Money") -> Decimal:
        if other.currency != self.currency:
            raise InputError(
                "error.currency_mix", code="E016", left=self.currency, right=other.currency
            )
        return other.amount


@dataclass(frozen=True, slots=True)
class FxRate:
    """One unit of `base` costs `rate` units of `quote`, on `date` (ISO), says `source`."""

    base: str
    quote: str
    rate: Decimal
    date: str
    source: str


def convert(money: Money, currency: str, rates: tuple[FxRate, ...]) -> Money:
    """The same money in another currency by a direct or inverse dated rate.

    Raises InputError E017 where no rate links the two.
    """
    if money.currency == currency:
        return money
    for fx in rates:
        if (fx.base, fx.quote) == (money.currency, currency):
            return Money(money.amount * fx.rate, currency)
        if (fx.quote, fx.base) == (money.currency, currency):
            return Money(money.amount / fx.rate, currency)
    raise InputError(
        "error.no_rate",
        code="E017",
        hint="hint.no_rate",
        base=money.currency,
        quote=currency,
    )
