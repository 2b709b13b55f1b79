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
    before = choice.tokens_per_s * useful_share(work, data)
    best: tuple[float, Choice] | None = None
    for setup, its_work in _alternatives(recipe, choice.setup, place, work, data):
        for variant in checkpoint_variants(setup):
            found = choose(variant, place, its_work, laws, micro_batch=None)
            if found is None or found.fit not in ("fits", "tight"):
                continue
            useful = found.tokens_per_s * useful_share(its_work, data)
            if best is None or useful > best[0] * CLEARLY_BETTER:
                best = (useful, found)
    if best is None or best[0] < before * WORTH_SHOWING:
        return None
    useful, found = best
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


def useful_share(work: Workload, data: DataFacts) -> float:
    """Share of the tokens that pass through the cards that are not padding."""
    if not work.packed:
        return 1 - data.padding_share
    if data.packed_sequences is None or data.num_samples == 0:
        return 1.0
    kept = (data.tokens_kept or data.tokens).likely
    return min(1.0, kept / (data.packed_sequences * work.peak_len))


def _alternatives(
    recipe: Recipe, setup: TrainingSetup, place: Place, work: Workload, data: DataFacts
) -> Iterator[tuple[TrainingSetup, Workload]]:
    """The attention kernels and packings that the recipe's stack and this card can run."""
    kernels = [setup.attention]
    if place.gpu.supports_flash_attention and recipe.training.attention == "auto":
        kernels.append("flash_attention_2")
    packed_too = setup.stack != "hf-trainer" and not work.packed and data.num_samples > 0
    for kernel in kernels:
        yield setup.with_changes(attention=kernel), work
        if packed_too:
            packed = workload(recipe, data, packing=True)
            yield setup.with_changes(attention=kernel, packing=True), packed
