"""The speed of a training step: work from the shape or the trace, prices from the card.

    micro-step = the card's busy time, or the CPU's launch time where that is longer
    step       = micro-steps + optimizer + what cards still owe each other + the loop around it

The CPU runs ahead of the card: a forward pass that it launches too slowly leaves the card idle,
and backward starts late by as much; a backward pass that it launches too slowly is the price of
the whole micro-step. Ranges come from the errors on published runs whose card was left out
(`benchmarks/speed/loco.py`).
"""

from collections.abc import Iterable

from loracle.domain.estimate import Range, SpeedEstimate, Term
from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op
from loracle.estimate.compute import step_ops
from loracle.estimate.network import Traffic, traffic
from loracle.estimate.pricelist import MULTIPLIES, Bill, PriceList
from loracle.estimate.rates import RATES, Rates
from loracle.estimate.spread import spread_of
from loracle.estimate.stacks import Stack, stack_of

_SOURCE = "benchmarks/speed/h200_microbench.json; published runs, card held out"
_FORMULA = {
    "gemm": "sum of max(FLOPs / (share x best matrix rate), bytes / bandwidth) + ramp",
    "attention": "FLOPs / (share x best matrix rate)",
    "elementwise": "bytes / (share x bandwidth)",
    "dequant": "packed bytes read and 16-bit bytes written / (share x bandwidth), each use",
    "loss": "bytes of the logits' passes / (share x bandwidth)",
    "optimizer": "max(bytes / bandwidth, launches x CPU time)",
}


def estimate_speed(
    setup: TrainingSetup, gpu: Gpu, *, node: Node | None = None, rates: Rates = RATES
) -> SpeedEstimate:
    """Seconds of one optimizer step and tokens a second over all cards, by formula.

    `tokens_per_s` counts every token of the batch, padding included. `node` gives the link
    between cards and the share of the card that is rented.
    """
    return speed_of_ops(step_ops(setup), setup, gpu, node=node, rates=rates, engine="formula")


def speed_of_ops(
    ops: Iterable[Op],
    setup: TrainingSetup,
    gpu: Gpu,
    *,
    node: Node | None = None,
    rates: Rates = RATES,
    engine: str,
) -> SpeedEstimate:
    """The estimate for operations that either engine listed."""
    stack = stack_of(setup.stack)
    adapters = setup.method != "full"
    bill = PriceList(gpu, rates, stack, fraction=_fraction(node), adapters=adapters).bill(ops)
    moved = traffic(setup, gpu, node, rates)
    terms = _terms(bill, moved, setup, rates)
    step = sum(term.value for term in terms)
    notes = _notes(stack, gpu)
    below, above = spread_of(setup, terms, certain=not notes)
    seconds = Range(step * (1 - below), step, step * (1 + above))
    return SpeedEstimate(
        engine=engine,
        step_seconds=seconds,
        tokens_per_s=seconds.inverse(setup.step_tokens),
        terms=terms,
        bound=_bound(bill, terms),
        notes=notes,
    )


def _terms(bill: Bill, moved: Traffic, setup: TrainingSetup, rates: Rates) -> tuple[Term, ...]:
    """Addends of one step, in seconds: the card's work by kind, then what it waits for."""
    accum = setup.grad_accum
    card, host = bill.card, bill.host
    busy = sum(took for phase, took in card.items() if phase != "optimizer")
    first = card.get("forward", 0.0)
    launched = sum(took for phase, took in host.items() if phase != "optimizer")
    launched += rates.micro_step_s * accum + _checkpointing(setup, rates)
    late = max(host.get("forward", 0.0) - first, 0.0)
    link = moved.micro_step_seconds * accum
    exposed = rates.exposed_link * link + moved.wait_seconds * accum
    running = busy + late + exposed
    micro = max(running, launched, link)
    waits_for_link = exposed + max(0.0, link - max(running, launched))
    waits_for_cpu = micro - busy - waits_for_link
    last = _optimizer(setup, card.get("optimizer", 0.0), host.get("optimizer", 0.0))
    rows = [
        Term(
            f"speed.{kind}",
            took,
            _FORMULA.get(kind, _FORMULA["elementwise"]),
            {"flops" if kind in MULTIPLIES else "bytes": bill.work[kind]},
            _SOURCE,
        )
        for kind, took in bill.by_kind.items()
        if kind != "optimizer"
    ]
    rows.append(
        Term("speed.launch", max(0.0, waits_for_cpu), "launches x CPU time - time of the card",
             {"cpu_seconds": launched, "card_seconds": busy})
    )  # fmt: skip
    if setup.num_gpus > 1:
        rows.append(
            Term("speed.link", waits_for_link + moved.final_seconds,
                 "bytes / link that computation does not hide",
                 {"bytes": moved.micro_step_bytes * accum + moved.final_bytes,
                  "bytes_per_s": moved.bytes_per_s})
        )  # fmt: skip
    rows.append(Term("speed.optimizer", last, _FORMULA["optimizer"]))
    rows.append(Term("speed.loop", rates.step_s, "fixed time of a step: data, callbacks, log"))
    return tuple(rows)


def _checkpointing(setup: TrainingSetup, rates: Rates) -> float:
    """CPU time of saving and restoring random states around recomputed layers."""
    return rates.checkpoint_s * setup.recomputed_layers * setup.grad_accum


def _optimizer(setup: TrainingSetup, card: float, host: float) -> float:
    """bitsandbytes waits for the card after every tensor; torch launches ahead."""
    waits = setup.optimizer.endswith("8bit") or setup.optimizer.startswith("paged")
    return card + host if waits else max(card, host)


def _bound(bill: Bill, terms: tuple[Term, ...]) -> str:
    if _share(terms, "speed.link") > 0.4:
        return "link"
    if _share(terms, "speed.launch") > 0.25:
        return "launch"
    multiplying = sum(bill.by_kind.get(kind, 0.0) for kind in MULTIPLIES)
    return "compute" if multiplying >= bill.card_seconds / 2 else "bandwidth"


def _share(terms: tuple[Term, ...], name: str) -> float:
    total = sum(term.value for term in terms)
    return sum(term.value for term in terms if term.id == name) / total if total else 0.0


def _fraction(node: Node | None) -> float:
    return node.share_fraction if node is not None else 1.0


def _notes(stack: Stack, gpu: Gpu) -> tuple[str, ...]:
    notes = []
    if not stack.known:
        notes.append("speed.note.unknown_stack")
    rate = gpu.sources.get(f"gemm_flops_per_s.{gpu.training_dtype}")
    if rate is not None and not rate.measured:
        notes.append("speed.note.rate_not_measured")
    return tuple(notes)
