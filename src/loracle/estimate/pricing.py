"""The price of a dry run's trace on any card: one trace serves them all.

The trace lists what the real stack did (kinds, FLOPs, bytes, dtypes, shapes, launches); the card's
price list is the formula's own, so the two engines differ in what was done, never in what it
costs.
"""

from loracle.domain.estimate import SpeedEstimate
from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Trace
from loracle.estimate.compute import step_ops
from loracle.estimate.rates import RATES, Rates
from loracle.estimate.speed import speed_of_ops

# Evaluation happens between steps, loading before them; the optimizer is priced by the formula.
NO_PART_OF_A_STEP = ("load", "evaluation", "optimizer")


def price_trace(
    trace: Trace,
    setup: TrainingSetup,
    gpu: Gpu,
    *,
    node: Node | None = None,
    rates: Rates = RATES,
) -> SpeedEstimate:
    """Seconds of one optimizer step and tokens a second over all cards, from a trace of `setup`.

    Operations of the evaluation pass are left out: they are no part of a step. Two kinds come from
    the formula's list: the optimizer, whose memory a trace writes out without running it, and the
    unpacking of quantised weights, which bitsandbytes hides inside its forward operator.
    """
    ops = [op for op in trace.ops if op.phase not in NO_PART_OF_A_STEP and op.kind != "dequant"]
    ops += [op for op in step_ops(setup) if op.kind in ("optimizer", "dequant")]
    return speed_of_ops(ops, setup, gpu, node=node, rates=rates, engine="dryrun")
