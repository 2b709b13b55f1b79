"""The parts of a decoder as rows of Linear layers, and how they are counted into a shape.

`catalog/layouts.py` says which architecture has which parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loracle.catalog.config_keys import Facts, Keys
from loracle.domain.model import Linear, ModelShape


def attention_path(facts: Facts) -> str:
    """Where a layer keeps its attention, with N for the layer's number."""
    return f"{facts.row['prefix']}.{facts.row['attention']}"


def attention_rows(
    facts: Facts, count: int, heads: int, kv_heads: int, head_dim: int, query_factor: int = 1
) -> list[Linear]:
    """The projections of one kind of attention layer, of which there are `count`."""
    if count == 0:
        return []
    row, keys, path = facts.row, facts.keys, attention_path(facts)
    widths = [query_factor * heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    if len(row["qkv"]) == 1:
        widths = [sum(widths)]
    bias = keys.flag(row["bias_qkv"])
    rows = [
        Linear(name=name, role="attention", count=count, in_features=facts.hidden,
               out_features=width, bias=bias, path=f"{path}.{name}")
        for name, width in zip(row["qkv"], widths, strict=True)
    ]  # fmt: skip
    rows.append(
        Linear(name=row["out"], role="attention", count=count, in_features=heads * head_dim,
               out_features=facts.hidden, bias=keys.flag(row["bias_out"]),
               path=f"{path}.{row['out']}")
    )  # fmt: skip
    return rows


def mlp_rows(facts: Facts) -> list[Linear]:
    """Dense MLPs, shared experts and their gates; routed experts are no Linear layers."""
    row = facts.row
    path = ".".join(part for part in (row["prefix"], row["mlp_path"]) if part)
    moe = row.get("moe")
    if not row["mlp"] and moe:
        dense = facts.layers - _moe_layers(facts)
        rows = _mlp(facts, moe.get("dense_mlp", ()), dense, facts.intermediate, path, "mlp")
        width = _shared_width(facts)
        if width:
            rows += _mlp(
                facts, ("gate_proj", "up_proj", "down_proj"), _moe_layers(facts), width,
                f"{path}.{moe['shared']}", _shared_role(moe),
            )  # fmt: skip
            if moe.get("shared_gate"):
                rows.append(
                    Linear(name="shared_expert_gate", role="router", count=_moe_layers(facts),
                           in_features=facts.hidden, out_features=1, bias=False,
                           path=f"{path}.shared_expert_gate")
                )  # fmt: skip
        return rows
    return _mlp(facts, row["mlp"], facts.layers, facts.intermediate, path, "mlp")


def _shared_role(moe: Mapping[str, Any]) -> str:
    return "mlp" if moe.get("shared_count") else "shared_expert"


def _mlp(
    facts: Facts, names: Sequence[str], count: int, width: int, path: str, role: str
) -> list[Linear]:
    if count == 0 or not names:
        return []
    bias = facts.keys.flag(facts.row["bias_mlp"])
    up = 2 * width if len(names) == 2 and facts.row["gated"] else width
    return [
        Linear(name=name, role=role, count=count, path=f"{path}.{name}", bias=bias,
               in_features=width if name == names[-1] else facts.hidden,
               out_features=facts.hidden if name == names[-1] else up)
        for name in names
    ]  # fmt: skip


def _moe_layers(facts: Facts) -> int:
    """How many layers route to experts."""
    moe = facts.row["moe"]
    keys = facts.keys
    if "dense_first" in moe:
        return max(0, facts.layers - int(keys.get(moe["dense_first"]) or 0))
    if "dense_mlp" not in moe:
        return facts.layers
    step = keys.optional_size("decoder_sparse_step") or 1
    dense = set(keys.get("mlp_only_layers") or ())
    return sum(1 for index in range(facts.layers) if index not in dense and (index + 1) % step == 0)


def _shared_width(facts: Facts) -> int:
    moe, keys = facts.row["moe"], facts.keys
    if "shared_width" in moe:
        return keys.optional_size(moe["shared_width"]) or 0
    if "shared_count" in moe:
        shared = keys.optional_size(moe["shared_count"]) or 0
        return shared * keys.size(moe["width"])
    return 0


def layers_of_type(facts: Facts, kind: str, interval: int) -> int:
    """How many layers the config names so; every `interval`-th where it does not say."""
    named = facts.keys.get("layer_types")
    if isinstance(named, list):
        return sum(1 for one in named if one == kind)
    full = facts.layers // interval
    # Gemma 4 forces the last layer to full attention.
    return full + (1 if facts.row["law"] == "gemma4" and facts.layers % interval else 0)


def assemble(
    facts: Facts,
    attention: list[Linear],
    mlp: list[Linear],
    *,
    other: int = 0,
    norms_per_layer: int | None = None,
    qk_norm: int | None = None,
    embedding_width: int | None = None,
    final_norm: bool = True,
) -> ModelShape:
    """Put the parts together and count: `other` are parameters that no list below names."""
    row, keys = facts.row, facts.keys
    norms = norms_per_layer if norms_per_layer is not None else row["norms_per_layer"]
    qk = _qk_norm_params(facts) if qk_norm is None else qk_norm
    rest = other + facts.layers * (norms * facts.norm_width + qk)
    rest += facts.norm_width if final_norm else 0
    rest += facts.layers * facts.heads if row.get("sinks") else 0
    width = embedding_width or facts.hidden
    linears = [*attention, *mlp]
    if row["head"]:
        linears.append(
            Linear(name=row["head"].rsplit(".", 1)[-1], role="head", count=1, in_features=width,
                   out_features=facts.vocab, bias=keys.flag(row["bias_head"]), path=row["head"])
        )  # fmt: skip
    elif not facts.tied:
        rest += facts.vocab * width  # a head that is no Linear (Baichuan's NormHead)
    moe = _experts(facts)
    total = facts.vocab * width + rest + moe.fused_params + moe.router_params
    for line in linears:
        tied = line.role == "head" and facts.tied
        weights = 0 if tied else line.in_features * line.out_features
        total += line.count * (weights + (line.out_features if line.bias else 0))
    return ModelShape(
        id=keys.model,
        model_type=str(keys.config["model_type"]),
        config=dict(keys.config),
        hidden_size=facts.hidden,
        intermediate_size=facts.intermediate,
        num_layers=facts.layers,
        num_heads=facts.heads,
        num_kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab,
        tied_embeddings=facts.tied,
        mlp_gated=bool(row["gated"]),
        norm="rmsnorm" if row["norm"] == "rmsnorm" else "layernorm",
        norms_per_layer=int(norms),
        qk_norm=_has_qk_norm(facts),
        parallel_residual=keys.flag(row["parallel"]),
        activation=str(keys.get("hidden_act") or "silu"),
        embedding_width=width,
        max_positions=keys.optional_size("max_position_embeddings"),
        sliding_window=_window(keys),
        logit_softcap=keys.number("final_logit_softcapping"),
        attention_softcap=keys.number("attn_logit_softcapping"),
        num_experts=moe.count,
        experts_per_token=moe.per_token,
        expert_intermediate_size=moe.width,
        num_moe_layers=moe.layers,
        fused_expert_params=moe.fused_params,
        router_params=moe.router_params,
        other_params=rest,
        num_params=total,
        linears=tuple(linears),
        buildable=not row["remote"],
        keeps_apart=tuple(row["apart"]),
    )


@dataclass(frozen=True, slots=True)
class _Experts:
    """Routed experts, which transformers 5 keeps as two 3-D parameters a layer."""

    count: int = 0
    per_token: int = 0
    width: int = 0
    layers: int = 0
    fused_params: int = 0
    router_params: int = 0


def _experts(facts: Facts) -> _Experts:
    moe, keys = facts.row.get("moe"), facts.keys
    if not moe:
        return _Experts()
    count, width = keys.size(moe["num_experts"]), keys.size(moe["width"])
    layers = _moe_layers(facts)
    one = 3 * facts.hidden * width
    if moe.get("expert_bias"):
        one += 2 * width + facts.hidden
    router = facts.hidden * count + (count if moe.get("router_bias") else 0)
    return _Experts(
        count=count,
        per_token=keys.optional_size("num_experts_per_tok") or 1,
        width=width,
        layers=layers,
        fused_params=layers * count * one,
        router_params=layers * router,
    )


def _has_qk_norm(facts: Facts) -> bool:
    kind = facts.row["qk_norm"]
    return kind in ("head", "full") or (kind != "none" and facts.keys.flag(kind))


def _qk_norm_params(facts: Facts) -> int:
    """Parameters of the norms of queries and keys in one layer."""
    if not _has_qk_norm(facts):
        return 0
    kind = facts.row["qk_norm"]
    kind = kind if kind in ("head", "full") else facts.row["qk_norm_kind"]
    if kind == "full":
        return (facts.heads + facts.kv_heads) * facts.head_dim
    return 2 * facts.head_dim * (2 if facts.row["norm"] == "layernorm" else 1)


def _window(keys: Keys) -> int | None:
    by = keys.row.get("windowed_by")
    if by and not keys.flag(by):
        return None
    return keys.optional_size("sliding_window")
