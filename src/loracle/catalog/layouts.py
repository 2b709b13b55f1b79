"""How the parts of a decoder add up: the laws behind `data/architectures.toml`.

Each law takes the facts of a config and returns the finished shape. `catalog/shapes.py` is the
door.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loracle.catalog.config_keys import Facts, Keys
from loracle.domain.model import Linear, ModelShape
from loracle.errors import UnsupportedModel

# ------------------------------------------------------------------------------- laws


def _decoder(facts: Facts) -> ModelShape:
    """Embedding, N alike layers of attention and MLP (or experts), a norm, a head."""
    attention = _attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return _assemble(facts, attention, _mlp_rows(facts))


def _gated_delta(facts: Facts) -> ModelShape:
    """Qwen3.5: three of four layers are gated delta nets, the fourth is gated attention."""
    keys = facts.keys
    full = _layers_of_type(facts, "full_attention", keys.size("full_attention_interval"))
    linear = facts.layers - full
    key_width = keys.size("linear_num_key_heads") * keys.size("linear_key_head_dim")
    value_heads = keys.size("linear_num_value_heads")
    value_width = value_heads * keys.size("linear_value_head_dim")
    channels = 2 * key_width + value_width
    rows = [
        Linear(name=name, role="linear_attention", count=linear, in_features=inward,
               out_features=outward, bias=False, path=f"{facts.row['prefix']}.linear_attn.{name}")
        for name, inward, outward in (
            ("out_proj", value_width, facts.hidden), ("in_proj_qkv", facts.hidden, channels),
            ("in_proj_z", facts.hidden, value_width), ("in_proj_b", facts.hidden, value_heads),
            ("in_proj_a", facts.hidden, value_heads),
        )
    ]  # fmt: skip
    # q_proj also makes the output gate, so it is twice as wide as the heads.
    rows += _attention_rows(
        facts, full, facts.heads, facts.kv_heads, facts.head_dim, query_factor=2
    )
    own = 2 * value_heads + channels * keys.size("linear_conv_kernel_dim") + keys.size(
        "linear_value_head_dim"
    )  # fmt: skip
    qk_norms = full * 2 * facts.head_dim
    return _assemble(facts, rows, _mlp_rows(facts), other=linear * own + qk_norms, qk_norm=0)


def _gemma4(facts: Facts) -> ModelShape:
    """Sliding and full attention of different width, an optional expert block beside the MLP.

    Per-layer input embeddings and shared key-value layers are refused.
    """
    keys = facts.keys
    if keys.get("hidden_size_per_layer_input") or keys.get("num_kv_shared_layers"):
        raise UnsupportedModel(
            "error.shape.part", hint="hint.shape.unknown", model=keys.model,
            part="per-layer input embeddings",
        )  # fmt: skip
    full = _layers_of_type(facts, "full_attention", 6)
    wide = keys.optional_size("global_head_dim") or facts.head_dim
    wide_kv = facts.kv_heads
    same_kv = keys.flag("attention_k_eq_v")
    if same_kv:
        wide_kv = keys.optional_size("num_global_key_value_heads") or wide_kv
    rows = _attention_rows(
        facts, facts.layers - full, facts.heads, facts.kv_heads, facts.head_dim
    ) + _attention_rows(facts, full, facts.heads, wide_kv, wide)
    if same_kv:
        rows = [row for row in rows if row.name != "v_proj" or row.out_features != wide_kv * wide]
    qk_norms = 2 * ((facts.layers - full) * facts.head_dim + full * wide)
    mlp = _mlp_rows(facts)
    other, experts, width, num_experts = qk_norms, 0, 0, 0
    if keys.flag("enable_moe_block"):
        num_experts, width = keys.size("num_experts"), keys.size("moe_intermediate_size")
        experts = facts.layers * num_experts * 3 * facts.hidden * width
        other += facts.layers * (facts.hidden + num_experts + 3 * facts.norm_width)
        mlp.append(
            Linear(name="proj", role="router", count=facts.layers, in_features=facts.hidden,
                   out_features=num_experts, bias=False,
                   path=f"{facts.row['prefix']}.router.proj")
        )  # fmt: skip
    shape = _assemble(facts, rows, mlp, other=other, qk_norm=0)
    if not num_experts:
        return shape
    return replace(
        shape,
        num_experts=num_experts,
        experts_per_token=keys.size("top_k_experts"),
        expert_intermediate_size=width,
        num_moe_layers=facts.layers,
        fused_expert_params=experts,
        num_params=shape.num_params + experts,
    )


def _latent(facts: Facts) -> ModelShape:
    """Multi-head latent attention: queries and key-values through low-rank projections."""
    keys = facts.keys
    rope, nope = keys.size("qk_rope_head_dim"), keys.size("qk_nope_head_dim")
    value, kv_rank = keys.size("v_head_dim"), keys.size("kv_lora_rank")
    q_rank = keys.optional_size("q_lora_rank")
    bias = keys.flag("attention_bias")
    query = facts.heads * (rope + nope)
    if q_rank is None:
        parts = [("q_proj", facts.hidden, query, False)]
    else:
        parts = [("q_a_proj", facts.hidden, q_rank, bias), ("q_b_proj", q_rank, query, False)]
    parts += [
        ("kv_a_proj_with_mqa", facts.hidden, kv_rank + rope, bias),
        ("kv_b_proj", kv_rank, facts.heads * (nope + value), False),
        ("o_proj", facts.heads * value, facts.hidden, bias),
    ]
    rows = [
        Linear(name=name, role="attention", count=facts.layers, in_features=inward,
               out_features=outward, bias=has_bias, path=f"{_attention_path(facts)}.{name}")
        for name, inward, outward, has_bias in parts
    ]  # fmt: skip
    norms = facts.layers * ((q_rank or 0) + kv_rank)
    shape = _assemble(facts, rows, _mlp_rows(facts), other=norms)
    return replace(shape, head_dim=rope + nope)


def _falcon(facts: Facts) -> ModelShape:
    """Multi-query, grouped (new decoder) or multi-head; parallel or not; alibi or rotary."""
    keys = facts.keys
    new = keys.flag("new_decoder_architecture")
    if new:
        kv_heads = keys.optional_size("num_key_value_heads") or facts.heads
        norms = keys.get("num_ln_in_parallel_attn") or 2
    else:
        kv_heads = 1 if keys.flag("multi_query") else facts.heads
        norms = 1 if keys.flag("parallel_attn") else 2
    facts = replace(facts, kv_heads=kv_heads)
    rows = _attention_rows(facts, facts.layers, facts.heads, kv_heads, facts.head_dim)
    parallel = new or keys.flag("parallel_attn")
    shape = _assemble(facts, rows, _mlp_rows(facts), norms_per_layer=int(norms))
    return replace(shape, parallel_residual=parallel)


def _opt(facts: Facts) -> ModelShape:
    """Learned positions (two more rows than positions), optional input and output projections."""
    keys = facts.keys
    inner = keys.optional_size("word_embed_proj_dim") or facts.hidden
    positions = (keys.size("max_position_embeddings") + 2) * facts.hidden
    final_norm = keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm")
    rows = _attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    if inner != facts.hidden:
        rows += [
            Linear(name=name, role="other", count=1, in_features=inward, out_features=outward,
                   bias=False, path=f"model.decoder.{name}")
            for name, inward, outward in (
                ("project_out", facts.hidden, inner), ("project_in", inner, facts.hidden)
            )
        ]  # fmt: skip
    return _assemble(
        facts, rows, _mlp_rows(facts), other=positions, embedding_width=inner,
        final_norm=final_norm,
    )  # fmt: skip


def _bloom(facts: Facts) -> ModelShape:
    """A norm after the embedding; alibi needs no parameters."""
    rows = _attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return _assemble(facts, rows, _mlp_rows(facts), other=facts.norm_width)


def _gpt2(facts: Facts) -> ModelShape:
    """Learned positions; GPTBigCode shares one key-value head."""
    keys = facts.keys
    kv_heads = 1 if keys.flag("multi_query") else facts.heads
    facts = replace(facts, kv_heads=kv_heads)
    rows = _attention_rows(facts, facts.layers, facts.heads, kv_heads, facts.head_dim)
    positions = keys.size("max_position_embeddings") * facts.hidden
    return _assemble(facts, rows, _mlp_rows(facts), other=positions)


def _gptj(facts: Facts) -> ModelShape:
    """GPT-J: gpt2's names with rotary positions."""
    rows = _attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return _assemble(facts, rows, _mlp_rows(facts))


def _stablelm(facts: Facts) -> ModelShape:
    """Parallel residual drops the second norm; the norms of q and k have no bias."""
    norms = 1 if facts.keys.flag("use_parallel_residual") else 2
    rows = _attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return _assemble(facts, rows, _mlp_rows(facts), norms_per_layer=norms)


def _mpt(facts: Facts) -> ModelShape:
    """The MLP's width is a ratio; no parameter has a bias (the class ignores no_bias=False)."""
    ratio = facts.keys.number("expansion_ratio") or 4
    facts = replace(facts, intermediate=int(ratio * facts.hidden))
    return _decoder(facts)


def _chatglm(facts: Facts) -> ModelShape:
    """One fused projection for queries and grouped keys and values; gate and up fused."""
    keys = facts.keys
    kv_heads = (
        keys.size("multi_query_group_num") if keys.flag("multi_query_attention") else facts.heads
    )
    facts = replace(facts, kv_heads=kv_heads)
    return _decoder(facts)


LAWS: dict[str, Callable[[Facts], ModelShape]] = {
    "decoder": _decoder, "gated_delta": _gated_delta, "gemma4": _gemma4, "latent": _latent,
    "falcon": _falcon, "opt": _opt, "bloom": _bloom, "gpt2": _gpt2, "gptj": _gptj,
    "stablelm": _stablelm, "mpt": _mpt, "chatglm": _chatglm,
}  # fmt: skip


# ------------------------------------------------------------------------------- parts


def _attention_path(facts: Facts) -> str:
    return f"{facts.row['prefix']}.{facts.row['attention']}"


def _attention_rows(
    facts: Facts, count: int, heads: int, kv_heads: int, head_dim: int, query_factor: int = 1
) -> list[Linear]:
    """The projections of one kind of attention layer, of which there are `count`."""
    if count == 0:
        return []
    row, keys, path = facts.row, facts.keys, _attention_path(facts)
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


def _mlp_rows(facts: Facts) -> list[Linear]:
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


def _layers_of_type(facts: Facts, kind: str, interval: int) -> int:
    """How many layers the config names so; every `interval`-th where it does not say."""
    named = facts.keys.get("layer_types")
    if isinstance(named, list):
        return sum(1 for one in named if one == kind)
    full = facts.layers // interval
    # Gemma 4 forces the last layer to full attention.
    return full + (1 if facts.row["law"] == "gemma4" and facts.layers % interval else 0)


def _assemble(
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
