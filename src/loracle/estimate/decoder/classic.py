"""Older decoders: alibi or learned positions, LayerNorm, plain MLPs."""

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.layers import Layer, attend, layer_norm, plain_mlp
from loracle.estimate.decoder.tape import Tensor


def bloom_layer(layer: Layer, x: Tensor) -> Tensor:
    """Alibi scores in full whatever the setting asks for; a gelu that saves its input."""
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    joint = layer.project(normed, "query_key_value")
    q, k, v = (op.clone(t, op.part(t, joint, 1 / 3)) for _ in range(3))
    del joint
    h = layer.project(op.alibi_attention(t, q, k, v, layer.heads, layer.head_dim, layer.stream),
                      "dense")  # fmt: skip
    del q, k, v
    h = op.add(t, x, h)
    second = layer_norm(layer, h, "post_norm")
    inner = op.unary(t, layer.project(second, "dense_h_to_4h"))
    m = layer.project(inner, "dense_4h_to_h")
    del inner, normed, second
    return op.add(t, h, m)


def mpt_layer(layer: Layer, x: Tensor) -> Tensor:
    """Alibi added to scores in full, an MLP that adds the residual itself."""
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    joint = layer.project(normed, "Wqkv")
    q, k, v = op.split(t, joint, 1 / 3, 1 / 3, 1 / 3)
    del joint
    h = layer.project(
        op.eager_attention(t, q, k, v, layer.heads, layer.heads, layer.head_dim, "float32"),
        "out_proj",
    )
    del q, k, v, normed
    h = op.add(t, h, x)
    normed = layer_norm(layer, h, "post_norm")
    m = layer.project(op.unary(t, layer.project(normed, "up_proj")), "down_proj")
    return op.add(t, m, h)


def opt_layer(layer: Layer, x: Tensor) -> Tensor:
    """Dropout of 0.1 by default on both branches, relu."""
    t = layer.tape
    before = bool(layer.shape.config.get("do_layer_norm_before", True))
    value = layer.shape.config.get("dropout", 0.1)
    p = float(value) if isinstance(value, int | float) else 0.1
    h = layer_norm(layer, x, "input_norm") if before else x
    q = op.scale(t, layer.project(h, "q_proj"))
    k, v = layer.project(h, "k_proj"), layer.project(h, "v_proj")
    h = layer.project(attend(layer, q, k, v), "out_proj")
    del q, k, v
    h = op.add(t, x, op.dropout(t, h, p))
    if not before:
        h = layer_norm(layer, h, "input_norm")
    m = layer_norm(layer, h, "post_norm") if before else h
    m = op.unary(t, layer.project(m, "fc1"), saves_output=True)
    m = op.dropout(t, layer.project(m, "fc2"), p)
    out = op.add(t, h, m)
    return out if before else layer_norm(layer, out, "post_norm")


def gpt2_layer(layer: Layer, x: Tensor) -> Tensor:
    """Learned positions, dropout of 0.1 on both branches, gelu_new in single operations."""
    t = layer.tape
    value = layer.shape.config.get("resid_pdrop", 0.1)
    p = float(value) if isinstance(value, int | float) else 0.1
    normed = layer_norm(layer, x, "ln_1")
    joint = layer.project(normed, "c_attn")
    groups = layer.heads + 2 * layer.kv_heads
    q, k, v = op.split(
        t, joint, layer.heads / groups, layer.kv_heads / groups, layer.kv_heads / groups
    )
    del joint
    h = op.dropout(t, layer.project(attend(layer, q, k, v), "attn.c_proj"), p)
    del q, k, v, normed
    h = op.add(t, h, x)
    normed = layer_norm(layer, h, "ln_2")
    m = op.dropout(t, plain_mlp(layer, normed, "c_fc", "mlp.c_proj"), p)
    return op.add(t, h, m)
