"""One currency for a run: its price an hour, its budget and what it has spent are compared.

A budget that nothing can be held against would be passed without a word, so it is refused while
there is still time to name a price.
"""

from collections.abc import Mapping

from loracle.catalog.fx import load_rates
from loracle.domain.money import Money, convert
from loracle.errors import InputError


def agreed_money(
    price: Money | None, budget: Money | None, stored: Mapping[str, object]
) -> dict[str, object]:
    """The options `price_per_hour`, `budget` and `currency`, as far as they are given.

    `price` is per hour; `stored` are the options of an earlier start, whose currency stays since
    what was spent is counted in it. Else the price's currency is the run's.

    Raises InputError E013 for a budget without any price, E017 where no rate links the currencies.
    """
    if price is None and budget is None:
        return {}
    has_price, has_budget = (stored.get(key) for key in ("price_per_hour", "budget"))
    if price is None and has_price is None:
        assert budget is not None
        raise InputError(
            "error.train.budget_alone", code="E013", hint="hint.train.budget_alone",
            amount=budget.amount, currency=budget.currency,
        )  # fmt: skip
    kept = stored.get("currency") if has_price or has_budget else None
    currency = str(kept or (price or Money.zero("CNY")).currency)
    found: dict[str, object] = {"currency": currency}
    if price is not None:
        found["price_per_hour"] = _converted(price, currency).amount
    if budget is not None:
        found["budget"] = _converted(budget, currency).amount
    return found


def _converted(money: Money, currency: str) -> Money:
    try:
        return convert(money, currency, load_rates())
    except InputError as error:
        error.hints = ("hint.train.no_rate",)
        raise
