"""This machine's card as the planner knows cards, and the plan of a recipe for it."""

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from loracle.catalog.gpus import find_gpu
from loracle.domain.gpu import Gpu
from loracle.domain.plan import Candidate, Plan
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import CatalogError
from loracle.jobs.train.world import local_rank


@dataclass(frozen=True, slots=True)
class LocalCard:
    """What the driver says of the card; `free_bytes` before this process has a context on it."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


def local_card() -> LocalCard | None:
    """The card of this process, or None on a machine without one.

    Asked of NVML, because torch would make a CUDA context, and the workers that tokenise are
    forked after this: a fork of a process with a context is not safe.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        import pynvml
    except ImportError:
        return _card_by_torch()
    try:
        pynvml.nvmlInit()
        card = _handle(pynvml, visible_card(local_rank()))
        memory = pynvml.nvmlDeviceGetMemoryInfo(card)
        return LocalCard(
            str(pynvml.nvmlDeviceGetName(card)),
            tuple(pynvml.nvmlDeviceGetCudaComputeCapability(card)),
            int(memory.total),
            int(memory.free),
        )
    except pynvml.NVMLError:
        return _card_by_torch()


def _card_by_torch() -> LocalCard:
    import torch

    properties = torch.cuda.get_device_properties(local_rank())
    free, total = torch.cuda.mem_get_info(local_rank())
    return LocalCard(properties.name, (properties.major, properties.minor), total, free)


def visible_card(rank: int) -> str:
    """Which card a process may use, as CUDA_VISIBLE_DEVICES names it: a number or a UUID."""
    named = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    listed = [one for one in named if one]
    return listed[rank] if rank < len(listed) else str(rank)


def _handle(nvml: Any, name: str) -> Any:
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def catalog_card(card: LocalCard) -> Gpu | None:
    """The catalog's card of that name, holding what is really free here; None where unknown."""
    try:
        known = find_gpu(card.name)
    except CatalogError:
        return None
    return replace(known, usable_bytes=min(known.usable_bytes, card.free_bytes))


def plan_here(recipe: Recipe, gpu: Gpu, num_gpus: int) -> Plan:
    """The plan of the recipe for this card alone, without prices.

    Raises what `make_plan` raises.
    """
    from loracle.planner.gather import gather
    from loracle.planner.plan import make_plan

    here = recipe.model_copy(
        update={
            "rent": recipe.rent.model_copy(
                update={"gpus": (gpu.id,), "offers": (), "budget": None, "deadline": None,
                        "max_gpus": max(num_gpus, recipe.rent.max_gpus)}
            )
        }
    )  # fmt: skip
    facts = gather(here, today=datetime.now(UTC).date().isoformat())
    return make_plan(here, replace(facts, gpus=(gpu,), offers=(), wanted=(gpu.id,)))


def candidate_for(plan: Plan, gpu_id: str | None, num_gpus: int) -> Candidate | None:
    """The plan's candidate of this card, the plainest where several match."""
    matches = [one for one in plan.candidates if one.gpu_id == gpu_id]
    same = [one for one in matches if one.num_gpus == num_gpus]
    return next(iter(same or matches), None)


def setup_from(
    recipe: Recipe, candidate: Candidate | None, baseline: TrainingSetup
) -> TrainingSetup:
    """The setup to run: the candidate's own, its filled one where the recipe leaves that open.

    A filled setup may also pack what the recipe does not and name a kernel that is not installed;
    the recipe's word stands in both.
    """
    if candidate is None:
        return baseline
    chosen = candidate.setup
    if candidate.filled is not None and recipe.training.gradient_checkpointing == "auto":
        chosen = candidate.filled.setup.with_changes(
            packing=candidate.setup.packing, attention=baseline.attention
        )
    return chosen.with_changes(num_gpus=1, parallel="none")


def promise(candidate: Candidate | None) -> dict[str, object] | None:
    """What the plan said of this card, as plain data for the screens that compare."""
    if candidate is None:
        return None
    speed = candidate.speed
    return {
        "device_bytes": candidate.memory.device_bytes.likely,
        "reserved_bytes": candidate.memory.reserved_bytes.likely,
        "allocated_bytes": candidate.memory.allocated_bytes.likely,
        "tokens_per_s": speed.tokens_per_s.likely if speed else None,
        "tokens_per_s_low": speed.tokens_per_s.low if speed else None,
        "usable_bytes": candidate.usable_bytes,
    }
