"""The speed of a training step by formula: work from the shape, prices from the card.

    micro-step = the card's busy time, or the CPU's launch time where that is longer
    step       = micro-steps + optimizer + what cards still owe each other

The CPU runs ahead of the card: a forward pass that it launches too slowly leaves the card idle,
a backward pass may catch up. Ranges come from the errors on published runs whose card was left
out (`benchmarks/speed/loco.py`).
"""

from loracle.domain.estimate import Range, SpeedEstimate, Term
from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op
from loracle.estimate.compute import step_ops
from loracle.estimate.network import traffic
from loracle.estimate.pricing import PriceList
from loracle.estimate.rates import RATES, Rates
from loracle.estimate.stacks import stack_of


def estimate_speed(
    setup: TrainingSetup, gpu: Gpu, *, node: Node | None = None, rates: Rates = RATES
) -> SpeedEstimate:
    """Seconds of one optimizer step and tokens a second over all cards.

    `tokens_per_s` counts every token of the batch, padding included. `node` gives the link
    between cards and the share of the card that is rented.
    """
    return speed_of(step_ops(setup), setup, gpu, node=node, rates=rates, engine="formula")


def speed_of(
    ops: tuple[Op, ...], setup: TrainingSetup, gpu: Gpu, *, node: Node | None, rates: Rates,
    engine: str,
) -> SpeedEstimate:  # fmt: skip
    """The estimate for operations of either engine."""
    stack = stack_of(setup.stack)
    bill = PriceList(gpu, rates, stack).bill(ops)
    card, host = bill.card, bill.host
    back = card.get("backward", 0.0) + card.get("recompute", 0.0)
    forward = max(card.get("forward", 0.0), host.get("forward", 0.0))
    launched = host.get("forward", 0.0) + host.get("backward", 0.0) + host.get("recompute", 0.0)
    launched += rates.micro_step_s * setup.grad_accum
    busy = forward + back
    moved = traffic(setup, gpu, node, rates)
    link = moved.micro_step_seconds * setup.grad_accum
    micro = max(busy, launched, link) + rates.exposed_link * min(link, busy)
    last = max(card.get("optimizer", 0.0), host.get("optimizer", 0.0))
    step = micro + last + moved.final_seconds + rates.step_s
    terms = tuple(Term(f"speed.{kind}", took) for kind, took in bill.by_kind.items())
    seconds = Range.around(step, 0.2, 0.25)
    bound = "link" if link >= max(busy, launched) else "launch" if launched > busy else "compute"
    return SpeedEstimate(
        engine=engine,
        step_seconds=seconds,
        tokens_per_s=seconds.inverse(setup.step_tokens),
        terms=terms,
        bound=bound,
    )
