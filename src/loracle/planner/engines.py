"""The two engines as `loracle validate` asks them: one setup in, memory and speed out.

A plan traces in a process apart and remembers (`loracle.jobs.traces`); `loracle validate` asks for
many different setups once each and wants neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from loracle.domain.estimate import MemoryEstimate, SpeedEstimate
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.errors import MissingExtra

NEEDED = ("torch", "transformers", "peft", "bitsandbytes")

# Stands in for a card that no catalog knows: memory needs its generation and its context only.
UNKNOWN_CARD = Gpu(
    id="unknown", name="unknown", memory_bytes=0, usable_bytes=0, context_bytes=0,
    bandwidth_bytes_per_s=0, peak_flops_per_s={}, gemm_flops_per_s={}, compute_capability=(9, 0),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine says of one setup.

    `fits` is whether the run ends under its cap where the engine plays the cap out; None where
    the range of the estimate decides.
    """

    memory: MemoryEstimate
    speed: SpeedEstimate | None = None
    fits: bool | None = None


# The setup, the card where it is known, the cap on torch's reserved bytes where there was one.
Engine = Callable[[TrainingSetup, Gpu | None, int | None], Answer]


def formula_engine(setup: TrainingSetup, gpu: Gpu | None, cap_bytes: int | None = None) -> Answer:
    """The closed forms, which know no cap; speed only where the card is known."""
    from loracle.estimate.memory import estimate_memory
    from loracle.estimate.speed import estimate_speed

    memory = estimate_memory(setup, gpu)
    return Answer(memory=memory, speed=estimate_speed(setup, gpu) if gpu is not None else None)


def dry_run_engine(setup: TrainingSetup, gpu: Gpu | None, cap_bytes: int | None = None) -> Answer:
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
