"""From a recipe and a model's shape to one `TrainingSetup`: every `auto` gets its value here.

What each stack does by itself (dtype of the adapters, fp32 upcast) is decided in this file and
nowhere else, because it moves the peak by GiBs for the same nominal settings.
"""

from collections import Counter
from dataclasses import replace

from loracle.domain.gpu import Gpu
from loracle.domain.model import Linear, ModelShape
from loracle.domain.recipe import Recipe
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.errors import Problem, RecipeError
from loracle.planner.packing import FLASH_SINCE, asks_to_pack, can_pack

_ATTENTION = ("attention", "linear_attention")
_NO_ADAPTER = ("head", "router")


def resolve(recipe: Recipe, shape: ModelShape) -> TrainingSetup:
    """The baseline setup of a recipe: micro-batch 1 and all layers checkpointed where `auto`.

    The numbers are those of a bf16 card; `on_card` adapts them to older ones. A model whose packed
    documents would see each other even there is not packed. Raises RecipeError
    E014 with all faults that only the model can tell: targets that it lacks or that miss layers,
    a rank wider than a layer.
    """
    _check(recipe, shape)
    training = recipe.training
    quantised = recipe.method == "qlora"
    checkpointing = training.gradient_checkpointing
    micro_batch = 1 if training.micro_batch == "auto" else training.micro_batch
    upcast = training.kbit_upcast
    setup = TrainingSetup(
        model=shape,
        method=recipe.method,
        quant=_quant(recipe) if quantised else None,
        stack=recipe.stack,
        kbit_upcast=quantised and (recipe.stack == "hf-trainer" if upcast is None else upcast),
        seq_len=training.seq_len,
        micro_batch=micro_batch,
        grad_accum=training.effective_batch // micro_batch,
        gradient_checkpointing=checkpointing is not False,
        checkpoint_every=checkpointing if type(checkpointing) is int else 1,
        attention="sdpa" if training.attention == "auto" else training.attention,
        optimizer=training.optimizer,
        lora=None if recipe.method == "full" else _lora(recipe),
        packing=asks_to_pack(recipe),
        eval_micro_batch=_eval_batch(recipe, micro_batch),
        max_grad_norm=training.max_grad_norm,
    )
    return _packed_where_apart(setup, FLASH_SINCE)


def on_card(setup: TrainingSetup, gpu: Gpu) -> TrainingSetup:
    """The setup as this card can run it.

    Cards before compute capability 8.0 emulate bf16 and have no FlashAttention-2: they train in
    fp16, whose loss scaling needs fp32 adapters. Without the variable-length kernel, some models do
    not keep packed documents apart: those are not packed there.
    """
    here = setup if gpu.supports_bf16 else _in_fp16(setup)
    return _packed_where_apart(here, gpu.compute_capability)


def _in_fp16(setup: TrainingSetup) -> TrainingSetup:
    return setup.with_changes(
        base_dtype="float16",
        autocast="float16",
        lora=setup.lora and replace(setup.lora, dtype="float32"),
        attention="sdpa" if setup.attention == "flash_attention_2" else setup.attention,
    )


def _packed_where_apart(setup: TrainingSetup, capability: tuple[int, int]) -> TrainingSetup:
    if setup.packing and not can_pack(setup, capability):
        return setup.with_changes(packing=False)
    return setup


def _quant(recipe: Recipe) -> str:
    if recipe.quant.type == "int8":
        return "int8"
    return "nf4-double" if recipe.quant.double else "nf4"


def _lora(recipe: Recipe) -> LoraSetup:
    lora = recipe.lora
    return LoraSetup(
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        dropout=lora.dropout,
        dtype=_adapter_dtype(recipe),
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
    )


def _adapter_dtype(recipe: Recipe) -> str:
    """PEFT makes fp32 adapters; TRL casts those on a quantised base to bf16; ours are bf16."""
    asked = recipe.training.adapter_dtype
    if asked != "auto":
        return asked
    if recipe.stack == "hf-trainer" or (recipe.stack == "trl" and recipe.method == "lora"):
        return "float32"
    return "bfloat16"


def _eval_batch(recipe: Recipe, micro_batch: int) -> int | None:
    if recipe.data.eval is None:
        return None
    return recipe.evaluation.batch or micro_batch


def _check(recipe: Recipe, shape: ModelShape) -> None:
    problems: list[Problem] = []
    if recipe.method != "full":
        problems += _target_problems(recipe, shape)
        widest = _widest_rank(recipe, shape)
        if widest is not None and recipe.lora.rank > widest:
            problems.append(
                Problem("plan.rank_too_wide", code="E014", rank=recipe.lora.rank, limit=widest)
            )
    if problems:
        raise RecipeError("plan.wrong_recipe", code="E014", problems=problems, model=shape.id)


def _target_problems(recipe: Recipe, shape: ModelShape) -> list[Problem]:
    names = shape.targets(recipe.lora.targets)
    right = ", ".join(shape.targets("attention"))
    rest = ", ".join(shape.targets("mlp"))
    values = {"model": shape.id or shape.model_type, "right": right, "mlp": rest}
    problems: list[Problem] = []
    by_name: dict[str, list[Linear]] = {}
    for row in shape.linears:
        by_name.setdefault(row.name, []).append(row)
    for name in names:
        rows = by_name.get(name.rsplit(".", 1)[-1], [])
        if not rows:
            problems.append(
                Problem(
                    "plan.no_such_target",
                    code="E014",
                    hint="hint.right_targets",
                    target=name,
                    **values,
                )
            )
        elif all(row.role in _NO_ADAPTER for row in rows):
            problems.append(
                Problem(
                    "plan.target_not_adaptable",
                    code="E014",
                    hint="hint.right_targets",
                    target=name,
                    **values,
                )
            )
    hit = layers_hit(shape, names)
    if hit < shape.num_layers and not recipe.lora.allow_partial:
        problems.append(
            Problem(
                "plan.targets_miss_layers",
                code="E014",
                hints=("hint.right_targets", "hint.allow_partial"),
                hit=hit,
                layers=shape.num_layers,
                **values,
            )
        )
    return problems


def layers_hit(shape: ModelShape, names: tuple[str, ...]) -> int:
    """How many layers carry at least one adapter.

    A name may have several rows where layers differ in shape. Layers of softmax and of linear
    attention exclude each other, so their counts add up; MLP rows may stand in any of them.
    """
    wanted = {name.rsplit(".", 1)[-1] for name in names}
    by_role: dict[str, Counter[str]] = {}
    for row in shape.linears:
        if row.name in wanted:
            by_role.setdefault(row.role, Counter())[row.name] += row.count
    most = {role: max(counts.values()) for role, counts in by_role.items()}
    attention = sum(most.get(role, 0) for role in _ATTENTION)
    mlp = max(most.get("mlp", 0), most.get("shared_expert", 0))
    return min(shape.num_layers, max(attention, mlp))


def _widest_rank(recipe: Recipe, shape: ModelShape) -> int | None:
    """The rank beyond which no targeted layer gains anything."""
    wanted = {name.rsplit(".", 1)[-1] for name in shape.targets(recipe.lora.targets)}
    sides = [min(row.in_features, row.out_features) for row in shape.linears if row.name in wanted]
    return max(sides, default=None)
