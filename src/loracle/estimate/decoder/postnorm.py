"""Decoders with norms after their branches: OLMo 2, EXAONE 4, the Gemmas."""

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.experts import expert_block, normed_route
from loracle.estimate.decoder.layers import (
    Layer,
    attend,
    gated_mlp,
    late_norm,
    norm,
    split_heads_attention,
    turned_attention,
)
from loracle.estimate.decoder.prenorm import split_attention
from loracle.estimate.decoder.tape import Tensor


def olmo2_layer(layer: Layer, x: Tensor) -> Tensor:
    """Norms after the branches; queries and keys normed over their whole width."""
    t = layer.tape
    q = late_norm(layer, layer.project(x, "q_proj"), "q_norm", layer.heads * layer.head_dim)
    k = late_norm(layer, layer.project(x, "k_proj"), "k_norm", layer.kv_heads * layer.head_dim)
    v = layer.project(x, "v_proj")
    h = turned_attention(layer, t, q, k, v)
    del q, k, v
    h = op.add(t, x, late_norm(layer, h, "post_attention_norm"))
    m = gated_mlp(layer, h)
    return op.add(t, h, late_norm(layer, m, "post_mlp_norm"))


def exaone4_layer(layer: Layer, x: Tensor) -> Tensor:
    """Norms after both branches, of each head's query and key before."""
    t = layer.tape
    h = split_attention(layer, x)
    h = op.add(t, x, norm(layer, h, "post_attention_norm"))
    m = gated_mlp(layer, h)
    return op.add(t, h, norm(layer, m, "post_mlp_norm"))


def gemma_layer(layer: Layer, x: Tensor) -> Tensor:
    """Llama with Gemma's norm."""
    t = layer.tape
    normed = late_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = late_norm(layer, h, "post_norm")
    m = gated_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def gemma2_layer(layer: Layer, x: Tensor) -> Tensor:
    """Norms before and after both branches; Gemma 3 norms each head's query and key as well."""
    t = layer.tape
    normed = late_norm(layer, x, "input_norm")
    h = _gemma_attention(layer, normed)
    del normed
    h = op.add(t, x, late_norm(layer, h, "post_attention_norm"))
    normed = late_norm(layer, h, "pre_mlp_norm")
    m = gated_mlp(layer, normed)
    del normed
    return op.add(t, h, late_norm(layer, m, "post_mlp_norm"))


def _gemma_attention(layer: Layer, x: Tensor) -> Tensor:
    if not layer.shape.qk_norm:
        return split_heads_attention(layer, x)
    t, dim = layer.tape, layer.head_dim
    q = layer.project(x, "q_proj")
    k = layer.project(x, "k_proj")
    v = layer.project(x, "v_proj")
    q = op.rms_norm(t, q, layer.norm_weight("q_norm", dim), late_cast=True, rows=layer.heads)
    k = op.rms_norm(t, k, layer.norm_weight("k_norm", dim), late_cast=True, rows=layer.kv_heads)
    return turned_attention(layer, t, q, k, v)


def gemma4_layer(layer: Layer, x: Tensor) -> Tensor:
    """Gemma 3 with normed values and, where there are experts, a routed branch beside the MLP."""
    t, dim = layer.tape, layer.head_dim
    normed = late_norm(layer, x, "input_norm")
    q = op.rms_norm(t, layer.project(normed, "q_proj"), layer.norm_weight("q_norm", dim),
                    late_cast=True, rows=layer.heads)  # fmt: skip
    q = op.rotate(t, q, layer.stream)
    key = layer.project(normed, "k_proj")
    value = layer.project(normed, "v_proj") if "v_proj" in layer.rows else key
    k = op.rms_norm(t, key, layer.norm_weight("k_norm", dim), late_cast=True, rows=layer.kv_heads)
    k = op.rotate(t, k, layer.stream)
    v = op.rms_norm(t, value, None, late_cast=True, rows=layer.kv_heads)
    del key, value
    h = layer.project(attend(layer, q, k, v), "o_proj")
    del q, k, v, normed
    h = op.add(t, x, late_norm(layer, h, "post_attention_norm"))
    normed = late_norm(layer, h, "pre_mlp_norm")
    m = gated_mlp(layer, normed)
    del normed
    if layer.shape.num_experts:
        first = late_norm(layer, m, "post_mlp_norm_1")
        weights = normed_route(layer, h)
        normed = late_norm(layer, h, "pre_mlp_norm_2")
        second = late_norm(layer, expert_block(layer, normed, weights), "post_mlp_norm_2")
        del normed
        m = op.add(t, first, second)
        del first, second
    out = op.add(t, h, late_norm(layer, m, "post_mlp_norm"))
    return op.scale_in_place(t, out)
