"""Where the job could run: a card or several of one machine, whole or in part, with its offer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from loracle.domain.gpu import Gpu, Node
from loracle.domain.offer import HOURS_IN_TERM, Offer

MACHINE_SIZES = (2, 4, 8)
WHOLE_SERVER = 8
DRIVER_SHARE = 0.03  # of a slice's memory; what a whole card loses comes from the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One machine of one offer (or of none), as the laws see it.

    `gpu` is the part that a process gets: for a slice its memory, bandwidth and matrix rates are
    already those of the part.
    """

    gpu: Gpu
    node: Node
    offer: Offer | None = None

    @property
    def num_gpus(self) -> int:
        """Cards of the machine."""
        return self.node.num_gpus

    @property
    def around(self) -> Node:
        """The machine around the card, for the speed law: the part is already in `gpu`."""
        return replace(self.node, share="whole", share_fraction=1.0, memory_bytes=None)

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for places that the laws cannot tell apart: the same card, part, count and link."""
        bare = replace(
            self.around, num_cores=None, ram_bytes=None, disk_bytes=None, network_bytes_per_s=None
        )
        return self.gpu.id, self.gpu.memory_bytes, self.gpu.bandwidth_bytes_per_s, bare

    @property
    def isolated(self) -> bool:
        """Whether nobody else can take this part's memory and time."""
        return self.node.share in ("whole", "mig")


def places(
    gpus: Sequence[Gpu], offers: Sequence[Offer], *, wanted: Sequence[str], max_gpus: int
) -> tuple[Place, ...]:
    """Every offer whose card is known, then the wanted cards that no offer holds.

    `wanted` are card ids; empty means all cards that an offer holds.
    """
    by_id = {gpu.id: gpu for gpu in gpus}
    found = [
        Place(gpu=part_of(by_id[offer.node.gpu_id], offer.node), node=offer.node, offer=offer)
        for offer in offers
        if offer.node.gpu_id in by_id
        and offer.node.num_gpus <= max_gpus
        and (not wanted or offer.node.gpu_id in wanted)
    ]
    offered = {place.node.gpu_id for place in found}
    unpriced = [gpu_id for gpu_id in wanted if gpu_id not in offered]
    return (*found, *(Place(gpu=by_id[name], node=Node(gpu_id=name)) for name in unpriced))


def several(found: Sequence[Place], max_gpus: int) -> tuple[Place, ...]:
    """Machines with 2, 4 or 8 of a card where only single ones are on offer.

    The price is that many times the cheapest single card's, or what the offer says a whole server
    costs; it is nobody's price until a provider names it, so the offer is marked `estimated`.
    """
    offered = {(place.node.gpu_id, place.num_gpus) for place in found}
    single: dict[str, Place] = {}
    for place in sorted(found, key=_hourly):
        if place.num_gpus == 1 and place.node.share == "whole":
            single.setdefault(place.node.gpu_id, place)
    return tuple(
        _of_many(place, count)
        for place in single.values()
        for count in MACHINE_SIZES
        if count <= max_gpus and (place.node.gpu_id, count) not in offered
    )


def _hourly(place: Place) -> float:
    if place.offer is None:
        return float("inf")
    price = place.offer.prices[0]
    return float(price.amount.amount) / HOURS_IN_TERM[price.period]


def _of_many(place: Place, count: int) -> Place:
    node = replace(place.node, num_gpus=count, num_cores=None, ram_bytes=None)
    offer = place.offer
    if offer is None:
        return Place(gpu=place.gpu, node=node)
    factor = Decimal(count)
    if offer.whole_node_factor is not None and count == WHOLE_SERVER:
        factor = sum(offer.whole_node_factor) / Decimal(2)
    prices = tuple(replace(price, amount=price.amount * factor) for price in offer.prices)
    discounts = tuple(replace(one, amount=one.amount * factor) for one in offer.discounts)
    many = replace(
        offer, id=f"{offer.id}*{count}", node=node, prices=prices, discounts=discounts,
        provenance="estimated", price_low=None, price_high=None,
    )  # fmt: skip
    return Place(gpu=place.gpu, node=node, offer=many)


def part_of(gpu: Gpu, node: Node) -> Gpu:
    """The card that a process on this node sees: the whole one, or a slice of it.

    A MIG part has its own share of the multiprocessors and of the memory's bandwidth (by memory).
    A software slice has a share of the time at best: the same shares, without any guarantee.
    """
    if node.share == "whole" and node.memory_bytes is None:
        return gpu
    memory = node.memory_bytes or round(gpu.memory_bytes * node.share_fraction)
    memory_share = min(1.0, memory / gpu.memory_bytes)
    compute_share = _compute_share(gpu, node, memory, memory_share)
    return replace(
        gpu,
        memory_bytes=memory,
        usable_bytes=min(gpu.usable_bytes, round(memory * (1 - DRIVER_SHARE))),
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * memory_share,
        peak_flops_per_s=_scaled(gpu.peak_flops_per_s, compute_share),
        gemm_flops_per_s=_scaled(gpu.gemm_flops_per_s, compute_share),
        num_sms=gpu.num_sms and max(1, round(gpu.num_sms * compute_share)),
        nvlink_bytes_per_s=None,
    )


def _compute_share(gpu: Gpu, node: Node, memory: int, memory_share: float) -> float:
    if node.share == "whole":
        return 1.0  # a card with more or less memory than the catalog's
    if node.share_fraction < 1:
        return node.share_fraction
    fitting = [p.sm_fraction for p in gpu.mig_profiles if p.memory_bytes <= memory * 1.05]
    return max(fitting, default=memory_share)


def _scaled(rates: Mapping[str, float], share: float) -> dict[str, float]:
    return {dtype: rate * share for dtype, rate in rates.items()}
