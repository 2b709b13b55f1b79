"""The recipe that a plan settled on: every `auto` replaced by what the plan chose."""

from loracle.domain.plan import Plan
from loracle.domain.setup import TrainingSetup


def resolved_recipe(plan: Plan) -> dict[str, object]:
    """The plan's recipe as plain data, with the settings of the recommended candidate.

    `train` on this recipe runs what the plan promised. Keys without a value are left out.
    """
    setup = plan.candidates[plan.best].setup if plan.best is not None else plan.setup
    recipe = _without_nothing(plan.recipe)
    training = recipe["training"]
    assert isinstance(training, dict)
    training["micro_batch"] = setup.micro_batch
    training["gradient_checkpointing"] = _checkpointing(setup)
    training["attention"] = setup.attention
    training["packing"] = setup.packing
    training["kbit_upcast"] = setup.kbit_upcast
    if setup.lora is not None:
        training["adapter_dtype"] = setup.lora.dtype
    return recipe


def _checkpointing(setup: TrainingSetup) -> bool | int:
    if not setup.gradient_checkpointing:
        return False
    return True if setup.checkpoint_every == 1 else setup.checkpoint_every


def _without_nothing(table: object) -> dict[str, object]:
    assert isinstance(table, dict)
    return {
        key: _without_nothing(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None and value != [] and value != ()
    }
