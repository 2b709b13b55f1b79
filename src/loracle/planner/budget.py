"""What the rest of a monthly budget buys: the add-ons that this job gains most from.

Nothing is recommended for its own sake: cores and memory up to what feeds the cards, disk up to
what the job writes, network by the hours of download that it saves. What an offer does not list
is looked for in the same provider's other offers, and said to come from there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from loracle.domain.gpu import Node
from loracle.domain.money import Money, convert
from loracle.domain.offer import HOURS_IN_TERM, AddOn
from loracle.domain.plan import Hint
from loracle.estimate.money import offered_terms, period_price
from loracle.planner.cost import Budget, Market
from loracle.planner.seat import Seat

CORES_PER_GPU = 8  # a loader process, tokenising and the trainer itself, without waiting
RAM_BYTES_PER_GPU = 32 * 2**30  # the largest shard while loading, the data, pinned buffers


@dataclass(frozen=True, slots=True)
class Purchase:
    """An add-on worth its price here, and why (a message id with its numbers)."""

    add_on: AddOn
    per_period: Money
    reason: str


def spend_the_rest(budget: Budget, seats: Sequence[Seat], market: Market) -> Iterator[Hint]:
    """The place that does most work for a budget a period, what is left, what that should buy.

    Looks at places that can be kept for the whole period, since a budget a month is that of a
    month's work; the plan's table has the one job.
    """
    whole = convert(budget.amount, market.currency, market.rates)
    affordable = [
        (spent, seat)
        for seat in seats
        if _recommendable(seat) and (spent := _kept(seat, budget.period, market)) is not None
        and spent <= whole
    ]  # fmt: skip
    if not affordable:
        yield Hint(id="advice.budget_too_small",
                   values={"budget_amount": whole.amount, "currency": market.currency,
                           "period": budget.period})  # fmt: skip
        return
    spent, best = min(affordable, key=lambda one: float(one[0].amount) / _tokens_per_s(one[1]))
    assert best.place.offer is not None
    left = whole - spent
    own = bool(best.place.offer.add_ons)
    bought = purchases(best, _price_list(best, seats), left, budget.period, market)
    total = sum((one.per_period.amount for one in bought), Decimal(0))
    yield Hint(
        id="advice.budget",
        values={"offer_id": best.place.offer.id, "gpu_id": best.candidate.gpu_id,
                "num_gpus": best.place.num_gpus,
                "period_tokens": _tokens_per_s(best) * HOURS_IN_TERM[budget.period] * 3600,
                "budget_amount": whole.amount, "spent": spent.amount, "left": left.amount,
                "currency": market.currency, "period": budget.period},
    )  # fmt: skip
    if bought:
        yield Hint(
            id="advice.spend_rest" if own else "advice.spend_rest_elsewhere",
            values={"add_ons": [one.add_on.id for one in bought],
                    "reasons": [one.reason for one in bought],
                    "cost": total, "left": (left.amount - total),
                    "currency": market.currency, "period": budget.period},
        )  # fmt: skip


def _recommendable(seat: Seat) -> bool:
    one = seat.candidate
    return one.fit in ("fits", "tight") and not {"shared", "high_risk"} & set(one.labels)


def _kept(seat: Seat, period: str, market: Market) -> Money | None:
    """What it costs to keep the place for one period; None where it is not let for so long."""
    offer = seat.place.offer
    if offer is None or period not in offered_terms(offer):
        return None
    price = period_price(offer, period)
    ratio = Decimal(HOURS_IN_TERM[period]) / Decimal(HOURS_IN_TERM[price.period])
    return convert(price.amount * ratio, market.currency, market.rates)


def _tokens_per_s(seat: Seat) -> float:
    return seat.candidate.speed.tokens_per_s.likely if seat.candidate.speed else 0.0


def purchases(
    seat: Seat, offered: Sequence[AddOn], left: Money, period: str, market: Market
) -> tuple[Purchase, ...]:
    """The add-ons that the job gains from, in order of need, as far as the money goes."""
    node = seat.place.node
    bought: list[Purchase] = []
    for reason, kind in _needs(seat, node):
        for add_on in offered:
            price = _per(add_on, period, market)
            if add_on.kind == kind and price <= left:
                bought.append(Purchase(add_on, price, reason))
                left = left - price
                break
    return tuple(bought)


def _needs(seat: Seat, node: Node) -> Iterator[tuple[str, str]]:
    """(reason, kind of add-on), what hurts most first; what a node does not state is no need."""
    cards = node.num_gpus
    if node.disk_bytes is not None and node.disk_bytes < _disk_need(seat):
        yield "need.disk", "disk"
    if node.num_cores is None or node.num_cores < CORES_PER_GPU * cards:
        yield "need.cores", "cores"
    elif node.num_cores < 2 * CORES_PER_GPU * cards:
        yield "need.more_cores", "cores"
    if node.ram_bytes is None or node.ram_bytes < RAM_BYTES_PER_GPU * cards:
        yield "need.ram", "ram"
    download = next((p.seconds.likely for p in seat.candidate.timeline if p.id == "download"), 0)
    if download > 0:
        yield "need.network", "network"
    if node.disk_bytes is None:
        yield "need.disk", "disk"


def _disk_need(seat: Seat) -> float:
    """Weights, merged model and a few checkpoints, twice over for the copy in flight."""
    return seat.choice.setup.model.num_params * 2 * 2.5


def _price_list(best: Seat, seats: Sequence[Seat]) -> tuple[AddOn, ...]:
    offer = best.place.offer
    assert offer is not None
    if offer.add_ons:
        return offer.add_ons
    for seat in seats:
        other = seat.place.offer
        if other is not None and other.provider == offer.provider and other.add_ons:
            return other.add_ons
    return ()


def _per(add_on: AddOn, period: str, market: Market) -> Money:
    ratio = Decimal(HOURS_IN_TERM[period]) / Decimal(HOURS_IN_TERM[add_on.period])
    return convert(add_on.price, market.currency, market.rates) * ratio
