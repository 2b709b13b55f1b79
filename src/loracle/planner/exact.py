"""The exact engine in a plan: a trace of the chosen setting, replayed and priced for its card.

A trace holds for every card of one compute capability. The ranges were chosen
with the errors of the measured runs in sight (docs/dry-run.md), not calibrated on held-out ones;
they are far narrower than the formula's.
"""

from collections.abc import Callable

from loracle.domain.estimate import MemoryEstimate, Range, Term
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Trace
from loracle.dryrun.replay import DryRunMemory, replay
from loracle.estimate.pricing import price_trace
from loracle.planner.fit import Choice, fit_of, usual_setup
from loracle.planner.laws import Laws
from loracle.planner.own_runs import NOTE as OWN_RUNS
from loracle.planner.place import Place
from loracle.planner.work import Workload

Tracer = Callable[[TrainingSetup, Gpu], Trace]

ALLOCATED_SPREAD = 0.01
RESERVED_SPREAD = 0.02  # history of the allocator: what was freed in which order
FRAGMENTATION = 0.04  # rows of many lengths, on the high side only
TERM_OF_KIND = {  # every one of domain.trace.OWNER_KINDS
    "parameter": "base",
    "quantised_weight": "base",
    "buffer": "base",
    "adapter": "adapters",
    "gradient": "gradients",
    "optimizer_state": "optimizer",
    "optimizer_scratch": "optimizer",
    "workspace": "workspace",
    "batch": "batch",
    "activation": "activations",
    "load": "activations",
}


def exact_choice(
    choice: Choice, place: Place, work: Workload, tracer: Tracer, laws: Laws
) -> Choice:
    """The same setting with the memory of its dry run, and the speed where lengths are one.

    Without packing the mean length sets the time, and the trace is of the longest: then the
    formula's speed stays, as it does where the user's own runs have moved it. Raises EngineError
    where there is no trace.
    """
    found = tracer(choice.setup, place.gpu)
    memory = memory_of(found, place.gpu, full_rows=work.packed)
    fit = fit_of(memory.device_bytes, place.gpu.usable_bytes)
    if fit == "no":
        return Choice(choice.setup, memory, fit)
    usual = usual_setup(choice.setup, place, work)
    speed = laws.speed(usual, place.gpu, place.around)
    if usual.seq_len == choice.setup.seq_len and OWN_RUNS not in speed.notes:
        speed = price_trace(found, choice.setup, place.gpu, node=place.around)
    return Choice(choice.setup, memory, fit, speed)


def memory_of(trace: Trace, gpu: Gpu, *, full_rows: bool = True) -> MemoryEstimate:
    """Peaks of a trace on a card, with the owners of the allocated peak summed up into terms.

    A trace has rows of one length; where lengths vary (`full_rows` is False) the allocator's
    segments fit less well, so that reserved memory may end up higher.
    """
    seen = replay(trace, context_bytes=gpu.context_bytes)
    return memory_seen(seen, trace, full_rows=full_rows)


def memory_seen(seen: DryRunMemory, trace: Trace, *, full_rows: bool = True) -> MemoryEstimate:
    """One replay of a trace as an estimate."""
    above = RESERVED_SPREAD if full_rows else RESERVED_SPREAD + FRAGMENTATION
    terms: dict[str, float] = {}
    for owner, num_bytes in seen.owners:
        name = TERM_OF_KIND[owner.kind]
        terms[name] = terms.get(name, 0) + num_bytes
    return MemoryEstimate(
        engine="dryrun",
        model_bytes=seen.model_bytes,
        allocated_bytes=Range.around(seen.peak_allocated, ALLOCATED_SPREAD, ALLOCATED_SPREAD),
        reserved_bytes=Range.around(seen.peak_reserved, RESERVED_SPREAD, above),
        device_bytes=Range.around(seen.peak_device, RESERVED_SPREAD, above),
        peak_phase=seen.peak_phase,
        terms=tuple(
            Term(f"memory.{name}", size, source="dry run: storages alive at the peak")
            for name, size in sorted(terms.items(), key=lambda item: -item[1])
        ),
        trainable_params=trace.trainable_params,
        notes=trace.notes,
    )
