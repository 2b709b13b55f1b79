"""How the parts of a decoder add up: the laws behind `data/architectures.toml`.

Each law takes the facts of a config and returns the finished shape. `catalog/shapes.py` is the
door.
"""

from collections.abc import Callable
from dataclasses import replace

from loracle.catalog.config_keys import Facts
from loracle.catalog.layout_parts import (
    assemble,
    attention_path,
    attention_rows,
    layers_of_type,
    mlp_rows,
)
from loracle.domain.model import Linear, ModelShape
from loracle.errors import UnsupportedModel


def _decoder(facts: Facts) -> ModelShape:
    """Embedding, N alike layers of attention and MLP (or experts), a norm, a head."""
    attention = attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return assemble(facts, attention, mlp_rows(facts))


def _gated_delta(facts: Facts) -> ModelShape:
    """Qwen3.5: three of four layers are gated delta nets, the fourth is gated attention."""
    keys = facts.keys
    full = layers_of_type(facts, "full_attention", keys.size("full_attention_interval"))
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
    rows += attention_rows(facts, full, facts.heads, facts.kv_heads, facts.head_dim, query_factor=2)
    own = 2 * value_heads + channels * keys.size("linear_conv_kernel_dim") + keys.size(
        "linear_value_head_dim"
    )  # fmt: skip
    qk_norms = full * 2 * facts.head_dim
    return assemble(facts, rows, mlp_rows(facts), other=linear * own + qk_norms, qk_norm=0)


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
    full = layers_of_type(facts, "full_attention", 6)
    wide = keys.optional_size("global_head_dim") or facts.head_dim
    wide_kv = facts.kv_heads
    same_kv = keys.flag("attention_k_eq_v")
    if same_kv:
        wide_kv = keys.optional_size("num_global_key_value_heads") or wide_kv
    rows = attention_rows(
        facts, facts.layers - full, facts.heads, facts.kv_heads, facts.head_dim
    ) + attention_rows(facts, full, facts.heads, wide_kv, wide)
    if same_kv:
        rows = [row for row in rows if row.name != "v_proj" or row.out_features != wide_kv * wide]
    qk_norms = 2 * ((facts.layers - full) * facts.head_dim + full * wide)
    mlp = mlp_rows(facts)
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
    shape = assemble(facts, rows, mlp, other=other, qk_norm=0)
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
               out_features=outward, bias=has_bias, path=f"{attention_path(facts)}.{name}")
        for name, inward, outward, has_bias in parts
    ]  # fmt: skip
    norms = facts.layers * ((q_rank or 0) + kv_rank)
    shape = assemble(facts, rows, mlp_rows(facts), other=norms)
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
    rows = attention_rows(facts, facts.layers, facts.heads, kv_heads, facts.head_dim)
    parallel = new or keys.flag("parallel_attn")
    shape = assemble(facts, rows, mlp_rows(facts), norms_per_layer=int(norms))
    return replace(shape, parallel_residual=parallel)


def _opt(facts: Facts) -> ModelShape:
    """Learned positions (two more rows than positions), optional input and output projections."""
    keys = facts.keys
    inner = keys.optional_size("word_embed_proj_dim") or facts.hidden
    positions = (keys.size("max_position_embeddings") + 2) * facts.hidden
    final_norm = keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm")
    rows = attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    if inner != facts.hidden:
        rows += [
            Linear(name=name, role="other", count=1, in_features=inward, out_features=outward,
                   bias=False, path=f"model.decoder.{name}")
            for name, inward, outward in (
                ("project_out", facts.hidden, inner), ("project_in", inner, facts.hidden)
            )
        ]  # fmt: skip
    return assemble(
        facts, rows, mlp_rows(facts), other=positions, embedding_width=inner,
        final_norm=final_norm,
    )  # fmt: skip


def _bloom(facts: Facts) -> ModelShape:
    """A norm after the embedding; alibi needs no parameters."""
    rows = attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return assemble(facts, rows, mlp_rows(facts), other=facts.norm_width)


def _gpt2(facts: Facts) -> ModelShape:
    """Learned positions; GPTBigCode shares one key-value head."""
    keys = facts.keys
    kv_heads = 1 if keys.flag("multi_query") else facts.heads
    facts = replace(facts, kv_heads=kv_heads)
    rows = attention_rows(facts, facts.layers, facts.heads, kv_heads, facts.head_dim)
    positions = keys.size("max_position_embeddings") * facts.hidden
    return assemble(facts, rows, mlp_rows(facts), other=positions)


def _gptj(facts: Facts) -> ModelShape:
    """GPT-J: gpt2's names with rotary positions."""
    rows = attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return assemble(facts, rows, mlp_rows(facts))


def _stablelm(facts: Facts) -> ModelShape:
    """Parallel residual drops the second norm; the norms of q and k have no bias."""
    norms = 1 if facts.keys.flag("use_parallel_residual") else 2
    rows = attention_rows(facts, facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    return assemble(facts, rows, mlp_rows(facts), norms_per_layer=norms)


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
