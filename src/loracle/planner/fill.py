"""Fill the card: the fastest setting that fits, at the same effective batch.

Memory that stays free is speed not bought. Which layers are recomputed, how many sequences go
through at once, the attention kernel and packing change the time of a step and the peak, and
never what is learned from a batch (packing changes which samples share one).
"""

from collections.abc import Iterator

from loracle.domain.plan import DataFacts, Filled
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.planner.fit import Choice, choose
from loracle.planner.laws import Laws
from loracle.planner.packing import can_pack
from loracle.planner.place import Place
from loracle.planner.work import Workload, workload

CHECKPOINT_EVERY = (1, 2, 3, 4, None)  # None: no layer is recomputed
CLEARLY_BETTER = 1.01  # a change that the laws can hardly tell apart is not worth an install
WORTH_SHOWING = 1.02  # below 2 % the ranges of both settings say the same


def fill(
    recipe: Recipe, choice: Choice, place: Place, work: Workload, data: DataFacts, laws: Laws
) -> Filled | None:
    """The fastest setting for this place, or None where the choice is it already."""
    if choice.speed is None or choice.fit not in ("fits", "tight"):
        return None
    before = useful = choice.steps_per_s * useful_len(work, data)
    found = choice
    for alternatives in (_checkpointings, _packings, _kernels):
        for setup, its_work in alternatives(recipe, found.setup, place, work, data):
            other = choose(setup, place, its_work, laws, micro_batch=None)
            if other is None or other.fit not in ("fits", "tight"):
                continue
            its_useful = other.steps_per_s * useful_len(its_work, data)
            if its_useful > useful * CLEARLY_BETTER:
                useful, found = its_useful, other
    if useful < before * WORTH_SHOWING:
        return None
    assert found.speed is not None
    return Filled(
        setup=found.setup,
        device_bytes=found.memory.device_bytes,
        tokens_per_s=found.speed.tokens_per_s,
        fit=found.fit,
        gain=useful / before,
    )


def checkpoint_variants(setup: TrainingSetup) -> Iterator[TrainingSetup]:
    """The setup with every layer recomputed, every n-th, and none."""
    for every in CHECKPOINT_EVERY:
        if every is not None and every > 1 and every >= setup.model.num_layers:
            continue
        yield setup.with_changes(
            gradient_checkpointing=every is not None, checkpoint_every=every or 1
        )


def useful_len(work: Workload, data: DataFacts) -> float:
    """Tokens of a sequence that are not padding, on average."""
    if not work.packed or data.packed_sequences is None or data.num_samples == 0:
        return work.real_len
    kept = (data.tokens_kept or data.tokens).likely
    return min(work.real_len, kept / data.packed_sequences)


def _checkpointings(
    recipe: Recipe, setup: TrainingSetup, place: Place, work: Workload, data: DataFacts
) -> Iterator[tuple[TrainingSetup, Workload]]:
    for variant in checkpoint_variants(setup):
        yield variant, work


def _packings(
    recipe: Recipe, setup: TrainingSetup, place: Place, work: Workload, data: DataFacts
) -> Iterator[tuple[TrainingSetup, Workload]]:
    """Packed rows, with any checkpointing: a full row needs more memory than a short one."""
    if setup.stack == "hf-trainer" or work.packed or data.num_samples == 0:
        return
    if not can_pack(setup, place.gpu.compute_capability):
        return
    packed = workload(recipe, data, packing=True)
    for variant in checkpoint_variants(setup.with_changes(packing=True)):
        yield variant, packed


def _kernels(
    recipe: Recipe, setup: TrainingSetup, place: Place, work: Workload, data: DataFacts
) -> Iterator[tuple[TrainingSetup, Workload]]:
    """FlashAttention-2 where the recipe leaves the kernel open and the card has it."""
    if recipe.training.attention != "auto" or not place.gpu.supports_flash_attention:
        return
    other = setup.with_changes(attention="flash_attention_2")
    if setup.packing and not can_pack(other, place.gpu.compute_capability):
        return
    its_work = workload(recipe, data, packing=True) if setup.packing else work
    yield other, its_work
