"""What several cards say to each other in a step, and how long that takes.

Data parallel moves the gradients of what is trained, once an optimizer step: tens of MB for an
adapter, so PCIe does. Sharding moves every weight to every card twice a micro-step (before
forward, and again before backward), so the width of the link decides. The collectives are rings:
a card sends and receives (n - 1) / n of the bytes.
"""

from dataclasses import dataclass

from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.estimate.params import trained
from loracle.estimate.rates import RATES, Rates

# Bytes a second, one way, of one PCIe lane by generation (after encoding).
_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
_GEFORCE = ("rtx-20", "rtx-30", "rtx-40", "rtx-50")


@dataclass(frozen=True, slots=True)
class Traffic:
    """One way between two cards, in one optimizer step: bytes and seconds.

    `micro_step` runs beside the computation of each micro-step, `waits` are starts of collectives
    that computation has to wait for, `final` comes after the last backward.
    """

    bytes_per_s: float
    micro_step_bytes: float
    micro_step_seconds: float
    wait_seconds: float
    final_bytes: float
    final_seconds: float


def traffic(
    setup: TrainingSetup, gpu: Gpu, node: Node | None = None, rates: Rates = RATES
) -> Traffic:
    """Bytes and seconds of the collectives of a step; all zero on one card."""
    if setup.num_gpus == 1 or setup.parallel == "none":
        return Traffic(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    speed = link_bytes_per_s(gpu, node, rates)
    ring = (setup.num_gpus - 1) / setup.num_gpus
    params, tensors = trained(setup)
    wide = 4 if setup.lora is not None and setup.lora.dtype == "float32" else 2
    final = 2 * ring * params * wide
    if setup.parallel == "ddp":
        rounds = 1 + tensors // 100  # buckets of 25 MB or fewer
        return Traffic(speed, 0.0, 0.0, 0.0, final, final / speed + rounds * rates.collective_s)
    gathers = 2 if setup.method != "full" else 3
    moved = gathers * ring * stored_bytes(setup)
    # PEFT's wrapping policy shards each adapter matrix as a unit of its own.
    units = setup.model.num_layers + 1 + (tensors if setup.method != "full" else 0)
    waits = gathers * units * rates.collective_s
    return Traffic(speed, moved, moved / speed, waits, final / 2, final / 2 / speed)


def stored_bytes(setup: TrainingSetup) -> float:
    """Bytes of the base weights as they lie on the cards, and travel between them."""
    shape = setup.model
    linear = sum(
        row.count * row.in_features * row.out_features
        for row in shape.linears
        if row.role != "head"
    ) + (shape.fused_expert_params if setup.stack not in ("hf-trainer", "trl", "loracle") else 0)
    per_param = {None: 2.0, "int8": 1.0, "nf4": 0.5625, "nf4-double": 0.516}.get(setup.quant, 0.53)
    wide = 4.0 if setup.kbit_upcast and setup.quant is not None else 2.0
    if setup.quant is None:
        return 2.0 * shape.num_params
    return per_param * linear + wide * max(0, shape.num_params - linear)


def link_bytes_per_s(gpu: Gpu, node: Node | None = None, rates: Rates = RATES) -> float:
    """Achieved bytes a second, one way, between the cards of a node.

    A node's own figure wins. SXM cards have NVLink; bridges of PCIe cards are an extra that a
    node has to state. GeForce cards have no peer-to-peer: data passes through the CPU's memory.
    """
    if node is not None and node.link_bytes_per_s is not None:
        return node.link_bytes_per_s
    if gpu.nvlink_bytes_per_s and gpu.id.endswith(("sxm", "180gb", "186gb", "288gb", "h20-96gb")):
        return gpu.nvlink_bytes_per_s / 2 * rates.nvlink_share
    lane = _LANE_BYTES_PER_S.get(gpu.pcie_generation or 4, 1.969e9)
    share = rates.pcie_share if has_peer_to_peer(gpu) else rates.pcie_through_host_share
    return lane * (gpu.pcie_lanes or 16) * share


def has_peer_to_peer(gpu: Gpu) -> bool:
    """Whether two such cards on PCIe reach each other directly with the stock driver."""
    return not (gpu.id.startswith(_GEFORCE) and "ada" not in gpu.id)
