"""The dry run as one answer: trace the step here and now, replay its memory, price its operations.

A plan traces in a process apart and remembers (`loracle.jobs.traces`); `loracle validate` asks for
many different setups once each and wants neither.
"""

from importlib.util import find_spec

from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.errors import MissingExtra
from loracle.planner.validation import Answer

NEEDED = ("torch", "transformers", "peft", "bitsandbytes")

# Stands in for a card that no catalog knows: memory needs its generation and its context only.
UNKNOWN_CARD = Gpu(
    id="unknown", name="unknown", memory_bytes=0, usable_bytes=0, context_bytes=0,
    bandwidth_bytes_per_s=0, peak_flops_per_s={}, gemm_flops_per_s={}, compute_capability=(9, 0),
)  # fmt: skip


def dry_run(setup: TrainingSetup, gpu: Gpu | None, *, cap_bytes: int | None = None) -> Answer:
    """Memory, and speed where the card is known, from one traced step.

    With a cap on torch's reserved bytes the allocator plays it out, flush and retry included, and
    the answer says whether the run ends. Raises MissingExtra where the training stack is not
    installed, EngineError where the step cannot be run without values.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra("train", package)
    from loracle.dryrun.replay import replay
    from loracle.dryrun.trace import trace
    from loracle.estimate.pricing import price_trace
    from loracle.planner.exact import memory_seen

    card = gpu or UNKNOWN_CARD
    traced = trace(setup, capability=card.compute_capability)
    seen = replay(traced, context_bytes=card.context_bytes, cap_bytes=cap_bytes)
    return Answer(
        memory=memory_seen(seen, traced),
        speed=price_trace(traced, setup, gpu) if gpu is not None and traced.ops else None,
        fits=seen.fits if cap_bytes is not None else None,
    )
