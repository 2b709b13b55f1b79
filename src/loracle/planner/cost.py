"""What the job costs on an offer: the term that is cheapest for it, and what a budget allows."""

from dataclasses import dataclass
from decimal import Decimal

from loracle.domain.estimate import Range
from loracle.domain.money import FxRate, Money, convert
from loracle.domain.offer import HOURS_IN_TERM, Offer
from loracle.domain.plan import CostEstimate
from loracle.domain.recipe import Recipe
from loracle.estimate.money import job_cost, offered_terms
from loracle.units import parse_money


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: in all (`total`), or in each `period` (month, ...)."""

    amount: Money
    period: str


@dataclass(frozen=True, slots=True)
class Market:
    """What every price is judged with: dated rates, the currency of the answer, today's date."""

    rates: tuple[FxRate, ...]
    currency: str
    today: str


def budget_of(recipe: Recipe) -> Budget | None:
    """The recipe's budget as money per period, or None."""
    if recipe.rent.budget is None:
        return None
    amount, currency, period = parse_money(recipe.rent.budget)
    return Budget(Money(amount, currency), period)


def cheapest_cost(offer: Offer, seconds: Range, market: Market) -> CostEstimate | None:
    """The job under the term that makes it cheapest; the shorter of equals."""
    costs = [
        job_cost(
            offer,
            term,
            seconds,
            rates=market.rates,
            currency=market.currency,
            today=market.today,
        )
        for term in offered_terms(offer)
    ]
    return min(costs, key=lambda cost: cost.likely.amount) if costs else None


def within(cost: CostEstimate, budget: Budget, market: Market) -> bool:
    """Whether the likely cost stays in the budget: of the job, or of each of its periods."""
    return spent_per(cost, budget.period, market) <= convert(
        budget.amount, market.currency, market.rates
    )


def spent_per(cost: CostEstimate, period: str, market: Market) -> Money:
    """What leaves the pocket in one `period` (or in `total`) while the job runs.

    A price per longer period counts in part, one per shorter period as often as the job needs it.
    """
    if period == "total":
        return cost.likely
    unit = convert(cost.unit_price, market.currency, market.rates)
    ratio = Decimal(HOURS_IN_TERM[period]) / Decimal(HOURS_IN_TERM[cost.period])
    if ratio <= 1:
        return unit * ratio
    return unit * min(ratio, Decimal(str(cost.billed_periods.likely)))
