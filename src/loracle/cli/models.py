"""`loracle models`: the models whose shape is known offline, and what adapters reach in one."""

from typing import TYPE_CHECKING

import typer

from loracle import words
from loracle.cli.narrow import narrow_table
from loracle.cli.output import Column, Output

if TYPE_CHECKING:
    from loracle.domain.model import ModelShape

_SCHEMA = "loracle.model-list/1"
_GROUPS = ("attention", "mlp", "all-linear")
_RANKS = (8, 16, 64)


def run(
    name: str = typer.Argument(None, help=words.text("help.catalog.model_name")),
    text: str = typer.Option(None, "--filter", help=words.text("help.catalog.filter")),
    family: str = typer.Option(None, "--family", help=words.text("help.catalog.family")),
    offline: bool = typer.Option(False, "--offline", help=words.text("help.catalog.offline")),
    as_json: bool = typer.Option(False, "--json", help=words.text("help.json")),
    form: str = typer.Option("human", "--format", help=words.text("help.format")),
    quiet: bool = typer.Option(False, "--quiet", "-q", help=words.text("help.quiet")),
) -> None:
    """List the models, or print the shape of one."""
    from loracle.catalog.models import find_model, load_models

    output = Output("json" if as_json else "quiet" if quiet else form)
    if name is not None:
        _one(output, find_model(name, offline=offline))
        return
    shapes = [shape for shape in load_models() if _fits(shape, text, family)]
    if output.mode == "json":
        output.json({"schema": _SCHEMA, "models": [_summary(shape) for shape in shapes]})
    elif output.mode == "quiet":
        for shape in shapes:
            output.line(shape.id)
    else:
        _table(output, shapes)


def _fits(shape: "ModelShape", text: str | None, family: str | None) -> bool:
    names = " ".join((shape.id, *shape.same_shape, shape.modelscope_id or "")).lower()
    kind = f"{shape.family} {shape.model_type}".lower().replace(" ", "")
    return (text or "").lower() in names and (family or "").lower().replace(" ", "") in kind


def _one(output: Output, shape: "ModelShape") -> None:
    if output.mode == "json":
        output.json({"schema": _SCHEMA, "models": [_document(shape)]})
    elif output.mode == "quiet":
        output.line(f"{shape.id} {shape.num_params}")
    else:
        _screen(output, shape)


def _summary(shape: "ModelShape") -> dict[str, object]:
    return {
        "id": shape.id,
        "modelscope_id": shape.modelscope_id,
        "same_shape": shape.same_shape,
        "family": shape.family,
        "model_type": shape.model_type,
        "license": shape.license,
        "gated": shape.gated,
        "num_params": shape.num_params,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "vocab_size": shape.vocab_size,
        "max_positions": shape.max_positions,
        "num_experts": shape.num_experts,
    }


def _document(shape: "ModelShape") -> dict[str, object]:
    """The whole shape, with the adapters of every group of targets at rank 16."""
    from dataclasses import asdict

    plain = asdict(shape)
    plain["targets"] = {group: shape.targets(group) for group in _GROUPS}
    plain["trainable_params"] = {
        group: {str(rank): _trainable(shape, group, rank) for rank in _RANKS} for group in _GROUPS
    }
    plain["coverage"] = {
        group: [
            {"role": one.role, "hit": one.hit, "total": one.total}
            for one in _coverage(shape, group)
        ]
        for group in _GROUPS
    }
    return plain


def _trainable(shape: "ModelShape", group: str, rank: int) -> int:
    from loracle.domain.setup import LoraSetup, TrainingSetup
    from loracle.estimate.params import trainable_params

    return trainable_params(
        TrainingSetup(model=shape, method="lora", lora=LoraSetup(rank=rank, targets=group))
    )


def _coverage(shape: "ModelShape", group: str) -> "tuple[object, ...]":
    from loracle.estimate.params import coverage

    return coverage(shape, group)


def _table(output: Output, shapes: "list[ModelShape]") -> None:
    from loracle.units import count

    if not shapes:
        output.note(output.text("models.none"))
        return
    headings = ("model", "params", "layers", "hidden", "vocab", "context", "license", "mind")
    rows = []
    for shape in shapes:
        marks = [output.text("models.gated")] if shape.gated else []
        marks += [output.text("models.experts", count=shape.num_experts)] * bool(shape.num_experts)
        marks += [] if shape.buildable else [output.text("models.remote")]
        context = f"{shape.max_positions:,}" if shape.max_positions else ""
        rows.append(
            [shape.id, count(shape.num_params), str(shape.num_layers), f"{shape.hidden_size:,}",
             f"{shape.vocab_size:,}", context, shape.license, ", ".join(marks)]
        )  # fmt: skip
    numbers = ("params", "layers", "hidden", "vocab", "context")
    narrow_table(
        output,
        [Column(output.text(f"models.{one}"), right=one in numbers) for one in headings],
        rows,
        least_needed=[headings.index(one) for one in ("vocab", "license", "hidden", "layers")],
    )
    output.note(output.text("models.more"))


def _screen(output: Output, shape: "ModelShape") -> None:
    from loracle.units import count

    output.line(f"{shape.id}   {shape.model_type}   {count(shape.num_params)}")
    if shape.same_shape:
        output.line(output.text("models.same", names=", ".join(shape.same_shape)))
    if shape.modelscope_id:
        output.line(output.text("models.modelscope", name=shape.modelscope_id))
    output.line(
        output.text(
            "models.shape",
            layers=shape.num_layers,
            hidden=f"{shape.hidden_size:,}",
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            vocab=f"{shape.vocab_size:,}",
        )
    )
    if shape.num_experts:
        output.line(
            output.text(
                "models.moe",
                experts=shape.num_experts,
                used=shape.experts_per_token,
                params=count(shape.fused_expert_params),
            )
        )
    output.line()
    _linears(output, shape)
    output.line()
    _adapters(output, shape)
    for key in ("shape", "params"):
        if birth := shape.sources.get(key):
            what = output.text(f"models.source_{key}")
            output.note(f"{what}: {birth.source} ({birth.date})")


def _linears(output: Output, shape: "ModelShape") -> None:
    output.table(
        [
            Column(output.text("models.linear")),
            Column(output.text("models.role")),
            Column(output.text("models.count"), right=True),
            Column(output.text("models.in_out"), right=True),
            Column(output.text("models.bias")),
        ],
        [
            [
                line.name,
                line.role,
                str(line.count),
                f"{line.in_features:,} x {line.out_features:,}",
                output.text("models.yes") if line.bias else "",
            ]
            for line in shape.linears
        ],
    )


def _adapters(output: Output, shape: "ModelShape") -> None:
    """Trainable parameters of each group of targets, their share, and what they reach."""
    from loracle.units import count

    rows = []
    for group in _GROUPS:
        if not shape.targets(group):
            continue
        reached = _coverage(shape, group)
        hit, total = sum(one.hit for one in reached), sum(one.total for one in reached)
        trainable = [_trainable(shape, group, rank) for rank in _RANKS]
        share = trainable[_RANKS.index(16)] / shape.num_params
        rows.append(
            [group, _names(shape, group), f"{hit} / {total}",
             *(count(value) for value in trainable), f"{share:.2%}"]
        )  # fmt: skip
    output.table(
        [
            Column(output.text("models.targets")),
            Column(output.text("models.names")),
            Column(output.text("models.reached"), right=True),
            *(Column(output.text("models.rank", rank=rank), right=True) for rank in _RANKS),
            Column(output.text("models.of_all"), right=True),
        ],
        rows,
    )


def _names(shape: "ModelShape", group: str) -> str:
    """Leaf names; of all linear layers only their number, as the groups above name them."""
    names = shape.targets(group)
    return ", ".join(names) if group != "all-linear" else f"{len(names)}"
