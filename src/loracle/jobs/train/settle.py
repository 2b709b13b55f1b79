"""What runs on this machine, and what the plan promises of exactly that.

The recipe leaves things open, the plan fills them in, the card may want another precision, an out
of memory turned a knob, an architecture could not be packed. A run is held against its plan only
where the plan is of the setup that runs, so both are settled in one place.
"""

from dataclasses import dataclass, replace

from loracle.catalog.models import find_model
from loracle.domain.gpu import Gpu, Node
from loracle.domain.plan import Candidate, Plan
from loracle.domain.recipe import Recipe
from loracle.domain.setup import TrainingSetup
from loracle.errors import InputError
from loracle.jobs.runs import RunFolder
from loracle.jobs.train import place, preflight
from loracle.jobs.train.world import parallel, world_size
from loracle.planner.fit import judge
from loracle.planner.own_runs import user_laws
from loracle.planner.place import Place
from loracle.planner.plan_json import read_plan
from loracle.planner.resolve import resolve
from loracle.planner.work import workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The setup that runs, and the plan's candidate for this card made for that very setup.

    `plan`, `candidate` and `gpu` are None where this machine has no card that the catalog knows.
    """

    recipe: Recipe
    setup: TrainingSetup
    plan: Plan | None = None
    candidate: Candidate | None = None
    gpu: Gpu | None = None

    def with_changes(self, **changes: object) -> "Settled":
        """The same with some fields of the setup replaced, and the promise that goes with them."""
        setup = self.setup.with_changes(**changes)
        return replace(self, setup=setup, candidate=self._promised(setup))

    def _promised(self, setup: TrainingSetup) -> Candidate | None:
        """The candidate as the laws see the setup; as the plan has it where they are the same."""
        candidate, plan, gpu = self.candidate, self.plan, self.gpu
        if candidate is None or plan is None or gpu is None:
            return None
        if setup.with_changes(model=candidate.setup.model) == candidate.setup:
            return candidate
        choice = judge(
            setup,
            Place(gpu=gpu, node=Node(gpu_id=gpu.id, num_gpus=setup.num_gpus)),
            workload(self.recipe, plan.data, packing=setup.packing),
            user_laws((gpu,)),
        )
        return replace(
            candidate, setup=choice.setup, memory=choice.memory, fit=choice.fit, speed=choice.speed
        )


def settle(run: RunFolder, recipe: Recipe, card: place.LocalCard | None) -> Settled:
    """The setup for this machine: planned, made for the card, with what the run has adapted.

    Raises InputError E014 where no accumulation keeps the effective batch, and what making a plan
    raises.
    """
    world = world_size()
    gpu = place.catalog_card(card) if card else None
    plan = read_plan(run.plan.read_text("utf-8")) if run.plan.is_file() else None
    candidate = place.candidate_for(plan, gpu.id, world) if plan and gpu else None
    if candidate is None and gpu is not None:
        plan = place.plan_here(recipe, gpu, world)
        candidate = place.candidate_for(plan, gpu.id, world)
    setup = place.setup_from(recipe, candidate, resolve(recipe, find_model(recipe.model)))
    setup = preflight.for_capability(setup, card.capability if card else None)
    setup = setup.with_changes(**(run.status().get("adapted") or {}))  # type: ignore[arg-type]
    settled = Settled(recipe=recipe, setup=setup, plan=plan, candidate=candidate, gpu=gpu)
    return settled.with_changes(
        grad_accum=_grad_accum(recipe, setup.micro_batch, world),
        num_gpus=world,
        parallel=parallel(),
    )


def _grad_accum(recipe: Recipe, micro_batch: int, world: int) -> int:
    """Accumulation that keeps the effective batch; raises InputError E014 where none does."""
    effective = recipe.training.effective_batch
    if effective % (micro_batch * world):
        raise InputError(
            "error.train.batch", code="E014", effective=effective, micro=micro_batch, world=world
        )
    return effective // (micro_batch * world)
