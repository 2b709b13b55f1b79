"""What operations cost on a card: one price list for the formula's operations and the dry run's.

An operation takes the larger of its FLOPs over the achieved matrix rate and its bytes over the
achieved bandwidth, and never less than a kernel's own start. The CPU launches kernels ahead of
the card; where it cannot keep up, its launch time is the price.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from loracle.domain.gpu import Gpu
from loracle.domain.trace import Op
from loracle.estimate.rates import RATES, Rates, architecture
from loracle.estimate.stacks import PLAIN, Stack

MULTIPLIES = ("gemm", "attention")  # kinds whose work is counted in FLOPs

# Tiles of a matrix product (rows, columns) and their cost: elements, and how much slower a small
# tile is than a large one, whose operands are read once for more products.
TILES = ((256, 128, 32768.0), (128, 128, 16384 * 1.06), (128, 64, 8192 * 1.2), (64, 64, 4096 * 1.5))


@dataclass(slots=True)
class Bill:
    """Seconds of one optimizer step on one card, by kind of operation and by phase."""

    by_kind: dict[str, float]
    card: dict[str, float]  # by phase
    host: dict[str, float]  # by phase
    work: dict[str, float]  # FLOPs of products and attention, bytes of the rest, by kind

    @property
    def card_seconds(self) -> float:
        """Busy time of the card."""
        return sum(self.card.values())

    @property
    def host_seconds(self) -> float:
        """Time that the CPU needs to launch everything."""
        return sum(self.host.values())


class PriceList:
    """Achieved rates of one card, ready to price many operations."""

    def __init__(
        self,
        gpu: Gpu,
        rates: Rates = RATES,
        stack: Stack = PLAIN,
        *,
        fraction: float = 1.0,
        adapters: bool = True,
    ) -> None:
        """`fraction` is the share of the multiprocessors that a part of a card has.

        `adapters` says whether PEFT's wrappers stand between the layers.
        """
        self.rates = rates
        best = gpu.gemm_flops_per_s
        self.half = best.get(gpu.training_dtype, max(best.values())) * fraction
        self.single = best.get("float32", self.half / 8) * fraction
        hopper = architecture(gpu) == "hopper"
        share = rates.hopper_gemm_share if hopper else rates.gemm_share
        self.product_half, self.product_single = self.half * share, self.single * share
        self.num_sms = max(1, round((gpu.num_sms or 100) * fraction))
        copies = gpu.bandwidth_bytes_per_s * rates.bandwidth_share * fraction
        self.bandwidth = _together(copies, rates.issue_bytes_per_s * self.num_sms)
        self.unpacking = _together(copies, rates.dequant_issue_bytes_per_s * self.num_sms)
        self.kernels = _attention_kernels(gpu, rates)
        host = stack.launch * (rates.desktop_share if is_desktop(gpu) else 1.0)
        forward = rates.launch_forward_s * host * (1.0 if adapters else rates.bare_launch_share)
        self.launch = {
            "forward": forward,
            "recompute": forward,
            "evaluation": forward,
            "backward": forward if stack.python_backward else rates.launch_backward_s * host,
            "optimizer": rates.launch_optimizer_s * host,
        }
        self.launch_dequant = rates.launch_dequant_s * host

    def seconds(self, op: Op) -> float:
        """Busy time of the card for one run of an operation."""
        least = self.rates.kernel_s * op.launches
        if op.kind == "gemm":
            return max(self._gemm(op), least)
        if op.kind == "attention":
            return self._attention(op) + least
        if op.kind == "dequant":
            return max(op.bytes / self.unpacking, least)
        if op.kind == "optimizer" and op.name.endswith("8bit"):
            least = op.shape[0] * self.rates.blockwise_s / self.num_sms
        return max(op.bytes / self.bandwidth, least)

    def _attention(self, op: Op) -> float:
        backward = op.phase == "backward"
        rates, keys = self.rates, op.shape[3]
        share, half = (
            (rates.attention_backward_share, rates.attention_half_backward)
            if backward
            else (rates.attention_forward_share, rates.attention_half_forward)
        )
        rate = self.half * share * keys / (keys + half) * self.kernels.get(op.name, 1.0)
        return max(op.flops / rate, op.bytes / self.bandwidth)

    def _gemm(self, op: Op) -> float:
        """Whole waves of tiles over the multiprocessors, by the tile that wastes least."""
        rate = self.product_single if op.dtype == "float32" else self.product_half
        streaming = op.bytes / self.bandwidth
        if streaming > 2 * op.flops / rate:  # an adapter's thin product: no tile matters
            return streaming
        m, n, k = op.shape
        waves = min(
            -(-(-(-m // high) * -(-n // wide)) // self.num_sms) * cost for high, wide, cost in TILES
        )
        return max(streaming, waves * self.num_sms * 2.0 * k / rate + self.rates.gemm_ramp_s)

    def bill(self, ops: Iterable[Op]) -> Bill:
        """Everything together."""
        by_kind: dict[str, float] = {}
        card: dict[str, float] = {}
        host: dict[str, float] = {}
        work: dict[str, float] = {}
        last: Op | None = None
        once = 0.0
        for op in ops:
            # Recomputation follows its forward twin, at the same price.
            twin = last is not None and op.phase == "recompute" and op.bytes == last.bytes
            if not (twin and last is not None and op.kind == last.kind and op.flops == last.flops):
                once = self.seconds(op)
            last = op
            took = once * op.count
            by_kind[op.kind] = by_kind.get(op.kind, 0.0) + took
            card[op.phase] = card.get(op.phase, 0.0) + took
            amount = op.flops if op.kind in MULTIPLIES else op.bytes
            work[op.kind] = work.get(op.kind, 0.0) + amount * op.count
            launch = (
                self.launch_dequant
                if op.kind == "dequant"
                else self.launch.get(op.phase, self.launch["forward"])
            )
            host[op.phase] = host.get(op.phase, 0.0) + op.launches * op.count * launch
        return Bill(by_kind, card, host, work)


def _together(first: float, second: float) -> float:
    """The rate of work that takes its time at both rates."""
    return 1.0 / (1.0 / first + 1.0 / second)


def _attention_kernels(gpu: Gpu, rates: Rates) -> dict[str, float]:
    """Speed of each kernel relative to the card's best one, by the name that a trace gives it."""
    masked = rates.masked_attention_share
    if not gpu.supports_flash_attention:
        return dict.fromkeys(("sdpa", "flash", "cudnn", "efficient", "masked"), masked)
    flash = rates.hopper_flash_share if architecture(gpu) == "hopper" else 1.0
    return {"flash": flash, "efficient": masked, "masked": masked}


def is_desktop(gpu: Gpu) -> bool:
    """Whether the card usually sits beside a fast desktop CPU (GeForce)."""
    return gpu.id.startswith(("rtx-2", "rtx-3", "rtx-4", "rtx-5")) and "ada" not in gpu.id
