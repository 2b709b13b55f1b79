"""The laws as one planning session asks them: each question once.

A plan tries hundreds of settings; most of them come up again for the next offer of the same card.
"""

from collections.abc import Callable
from dataclasses import fields, replace

from loracle.domain.estimate import MemoryEstimate, SpeedEstimate
from loracle.domain.gpu import Gpu, Node
from loracle.domain.setup import TrainingSetup
from loracle.domain.trace import Op

MemoryLaw = Callable[[TrainingSetup, Gpu], MemoryEstimate]
SpeedLaw = Callable[[TrainingSetup, Gpu, Node], SpeedEstimate]

_KNOBS = tuple(field.name for field in fields(TrainingSetup) if field.name != "model")


class Laws:
    """Memory and speed of setups on cards, remembered for as long as the object lives."""

    def __init__(self, memory: MemoryLaw, speed: SpeedLaw, engine: str = "formula") -> None:
        self.engine = engine
        self._memory_law = memory
        self._speed_law = speed
        self._memory: dict[object, tuple[MemoryEstimate, int]] = {}
        self._speed: dict[object, SpeedEstimate] = {}

    def memory(self, setup: TrainingSetup, gpu: Gpu) -> MemoryEstimate:
        """Peak memory of one process of this setup on this card.

        A card enters by its compute capability (which kernels run) and by its CUDA context, which
        stands beside everything else: cards of one capability differ in that alone.
        """
        key = (id(setup.model), knobs(setup), gpu.compute_capability)
        if key not in self._memory:
            self._memory[key] = self._memory_law(setup, gpu), gpu.context_bytes
        estimate, context_bytes = self._memory[key]
        if context_bytes == gpu.context_bytes:
            return estimate
        more = gpu.context_bytes - context_bytes
        return replace(estimate, device_bytes=estimate.device_bytes.plus(more))

    def speed(self, setup: TrainingSetup, gpu: Gpu, node: Node) -> SpeedEstimate:
        """Time of one optimizer step of this setup on this machine."""
        key = (id(setup.model), knobs(setup), gpu.id, gpu.bandwidth_bytes_per_s, node)
        if key not in self._speed:
            self._speed[key] = self._speed_law(setup, gpu, node)
        return self._speed[key]


def formula_laws() -> Laws:
    """The closed-form laws of `loracle.estimate`."""
    from loracle.estimate.compute import step_ops
    from loracle.estimate.memory import estimate_memory
    from loracle.estimate.speed import speed_of_ops

    done: dict[object, tuple[Op, ...]] = {}

    def speed(setup: TrainingSetup, gpu: Gpu, node: Node) -> SpeedEstimate:
        """The operations are those of the setup; only their prices are the card's."""
        key = (id(setup.model), knobs(setup))
        if key not in done:
            done[key] = tuple(step_ops(setup))
        return speed_of_ops(done[key], setup, gpu, node=node, engine="formula")

    return Laws(estimate_memory, speed)


def knobs(setup: TrainingSetup) -> tuple[object, ...]:
    """Everything of a setup but the model: hashable, and equal where the settings are."""
    return tuple(getattr(setup, name) for name in _KNOBS)
