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
from loracle.planner.cost import Budget, Market, spent_per
from loracle.planner.seat import Seat

CORES_PER_GPU = 8  # a loader process, tokenising and the trainer itself, without waiting
RAM_BYTES_PER_GPU = 32 * 2**30  # the largest shard while loading, the data, pinned buffers


@dataclass(frozen=True, slots=True)
class Purchase:
    """An add-on worth its price here, and why (a message id with its numbers)."""

    add_on: AddOn
    per_period: Money
    reason: str


def spend_the_rest(
    best: Seat, budget: Budget, seats: Sequence[Seat], market: Market
) -> Iterator[Hint]:
    """What the best place costs of the budget, what is left, and what that should buy."""
    assert best.candidate.cost is not None
    assert best.place.offer is not None
    whole = convert(budget.amount, market.currency, market.rates)
    spent = spent_per(best.candidate.cost, budget.period, market)
    left = whole - spent
    own = bool(best.place.offer.add_ons)
    bought = purchases(best, _price_list(best, seats), left, budget.period, market)
    total = sum((one.per_period.amount for one in bought), Decimal(0))
    yield Hint(
        id="advice.budget",
        values={"budget_amount": whole.amount, "spent": spent.amount, "left": left.amount,
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
