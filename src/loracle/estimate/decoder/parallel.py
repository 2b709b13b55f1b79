"""Decoders whose attention and MLP may read the same input: Cohere, Phi, StableLM, NeoX, Falcon."""

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.layers import (
    Layer,
    attend,
    centred_norm,
    fused_heads,
    gated_mlp,
    layer_norm,
    plain_mlp,
    rotary_share,
    split_heads_attention,
    turned_attention,
)
from loracle.estimate.decoder.tape import Tensor


def cohere_layer(layer: Layer, x: Tensor) -> Tensor:
    """Attention and MLP read the same norm; rotary positions in fp32."""
    t = layer.tape
    normed = centred_norm(layer, x, "input_norm")
    q = layer.project(normed, "q_proj")
    k = layer.project(normed, "k_proj")
    v = layer.project(normed, "v_proj")
    if layer.shape.qk_norm:
        q = centred_norm(layer, q, "q_norm", layer.heads * layer.head_dim)
        k = centred_norm(layer, k, "k_norm", layer.kv_heads * layer.head_dim)
    source = q.dtype
    q_wide, k_wide = op.cast(t, q, "float32"), op.cast(t, k, "float32")
    q_turned, k_turned = op.rotate(t, q_wide, layer.stream), op.rotate(t, k_wide, layer.stream)
    q, k = op.cast(t, q_turned, source), op.cast(t, k_turned, source)
    del q_wide, k_wide, q_turned, k_turned
    h = layer.project(attend(layer, q, k, v), "o_proj")
    del q, k, v
    m = gated_mlp(layer, normed)
    return op.add(t, op.add(t, x, h), m)


def phi_layer(layer: Layer, x: Tensor) -> Tensor:
    """Attention and MLP beside each other, part of each head rotated."""
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed, out="dense", share=rotary_share(layer.shape, 0.5))
    m = plain_mlp(layer, normed, "fc1", "fc2")
    return op.add(t, op.add(t, h, m), x)


def stablelm_layer(layer: Layer, x: Tensor) -> Tensor:
    """LayerNorm, a quarter of each head rotated, parallel where the config says so."""
    t, share = layer.tape, rotary_share(layer.shape, 0.25)
    normed = layer_norm(layer, x, "input_norm")
    if layer.shape.qk_norm:
        q, k = layer.project(normed, "q_proj"), layer.project(normed, "k_proj")
        v = layer.project(normed, "v_proj")
        q, k = _split_norm(layer, q, layer.heads), _split_norm(layer, k, layer.kv_heads)
        h = turned_attention(layer, t, q, k, v, share=share)
        del q, k, v
    else:
        h = split_heads_attention(layer, normed, share=share)
    if layer.shape.parallel_residual:
        m = gated_mlp(layer, normed)
        return op.add(t, op.add(t, x, h), m)
    residual = op.add(t, x, h)
    m = gated_mlp(layer, layer_norm(layer, residual, "post_norm"))
    return op.add(t, residual, m)


def _split_norm(layer: Layer, x: Tensor, heads: int) -> Tensor:
    """StableLM's LayerNorm for each head: split, norm one by one, put together."""
    t = layer.tape
    pieces = [op.layer_norm(t, one, None) for one in op.split(t, x, *([1 / heads] * heads))]
    return op.cat(t, *pieces)


def gpt_neox_layer(layer: Layer, x: Tensor) -> Tensor:
    """One fused projection, and two norms of the same input where parallel."""
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    joint = layer.project(normed, "query_key_value")
    q, k, v = op.split(t, joint, 1 / 3, 1 / 3, 1 / 3)
    del joint
    h = turned_attention(layer, t, q, k, v, out="dense", share=rotary_share(layer.shape, 0.25))
    del q, k, v, normed
    if layer.shape.parallel_residual:
        m = plain_mlp(layer, layer_norm(layer, x, "post_norm"), "dense_h_to_4h", "dense_4h_to_h")
        return op.add(t, op.add(t, m, h), x)
    h = op.add(t, h, x)
    m = plain_mlp(layer, layer_norm(layer, h, "post_norm"), "dense_h_to_4h", "dense_4h_to_h")
    return op.add(t, m, h)


def falcon_layer(layer: Layer, x: Tensor) -> Tensor:
    """Multi-query or grouped heads, SDPA called by the model itself."""
    t, shape = layer.tape, layer.shape
    grouped = bool(shape.config.get("new_decoder_architecture"))
    parallel = shape.parallel_residual
    normed = layer_norm(layer, x, "input_norm")
    second = normed
    if grouped and shape.norms_per_layer == 2:
        second = layer_norm(layer, x, "mlp_norm")
    q, k, v = fused_heads(layer, normed, "query_key_value")
    if grouped:
        q = op.clone(t, q)
        k = op.repeat_heads(t, k, layer.heads // layer.kv_heads)
        v = op.repeat_heads(t, v, layer.heads // layer.kv_heads)
        layer.kv_heads = layer.heads
    else:
        k, v = op.clone(t, k), op.clone(t, v)
    h = turned_attention(layer, t, q, k, v, out="dense", rope=not shape.config.get("alibi"))
    del q, k, v
    if not parallel:
        x = op.add(t, x, h)
        second = layer_norm(layer, x, "post_norm")
    m = plain_mlp(layer, second, "dense_h_to_4h", "dense_4h_to_h")
    del normed, second
    if parallel:
        m = op.add_in_place(t, m, h)
    return op.add(t, x, m)
