"""The dry run as one answer: trace the step, replay its memory, price its operations.

Ranges are around the replayed values: what differs between a replay and a card is known from the
measured runs (`benchmarks/memory_calibration.py`), and is small.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from loracle.domain.estimate import MemoryEstimate, Range, SpeedEstimate, Term
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.errors import MissingExtra

if TYPE_CHECKING:
    from loracle.domain.trace import Trace

ALLOCATED_SHARE = 0.01  # half-width of the range of allocated memory, of its likely value
RESERVED_SHARE = 0.03
HOPPER = (9, 0)
NEEDED = ("torch", "transformers", "peft", "bitsandbytes")


def dry_run(
    setup: TrainingSetup, gpu: Gpu | None, *, cap_bytes: int | None = None
) -> tuple[MemoryEstimate, SpeedEstimate | None]:
    """Memory, and speed where the card is known, from one traced step.

    Raises MissingExtra where the training stack is not installed, EngineError where the step
    cannot be run without values.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra("train", package)
    from loracle.dryrun.trace import trace

    traced = trace(setup, capability=gpu.compute_capability if gpu else HOPPER)
    memory = memory_of(traced, gpu, cap_bytes=cap_bytes)
    return memory, _speed(traced, setup, gpu)


def memory_of(traced: "Trace", gpu: Gpu | None, *, cap_bytes: int | None = None) -> MemoryEstimate:
    """A trace on a card: the replayed peaks with their ranges, and who owns them."""
    from loracle.dryrun.replay import replay

    context = gpu.context_bytes if gpu else 0
    seen = replay(traced, context_bytes=context, cap_bytes=cap_bytes)
    kinds: dict[str, int] = {}
    for owner, size in seen.owners:
        kinds[owner.kind] = kinds.get(owner.kind, 0) + size
    return MemoryEstimate(
        engine="dryrun",
        model_bytes=seen.model_bytes,
        allocated_bytes=Range.around(seen.peak_allocated, ALLOCATED_SHARE, ALLOCATED_SHARE),
        reserved_bytes=Range.around(seen.peak_reserved, RESERVED_SHARE, RESERVED_SHARE),
        device_bytes=Range.around(seen.peak_device, RESERVED_SHARE, RESERVED_SHARE),
        peak_phase=seen.peak_phase,
        terms=tuple(Term(f"memory.owner.{kind}", size) for kind, size in kinds.items()),
        trainable_params=traced.trainable_params,
        notes=traced.notes,
    )


def _speed(traced: "Trace", setup: TrainingSetup, gpu: Gpu | None) -> SpeedEstimate | None:
    if gpu is None or not traced.ops:
        return None
    from loracle.estimate.pricing import price_trace

    return price_trace(traced, setup, gpu)
