"""Qwen3.5's two layers: gated delta nets and gated attention.

The delta rule is taken as transformers runs it without extra kernels: in fp32, by chunks of 64
tokens (models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule).
"""

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.layers import Layer, attend, gated_mlp, late_norm, rotary_share
from loracle.estimate.decoder.tape import Tensor

CHUNK = 64


def gated_attention_layer(layer: Layer, x: Tensor) -> Tensor:
    """Attention whose output is gated by half of a doubled query projection."""
    t, dim = layer.tape, layer.head_dim
    normed = late_norm(layer, x, "input_norm")
    joint = layer.project(normed, "q_proj")
    q, gate = op.split(t, joint, 0.5, 0.5)
    del joint
    gate = op.clone(t, gate)
    share = rotary_share(layer.shape, 0.25)
    q = op.rms_norm(t, q, layer.norm_weight("q_norm", dim), late_cast=True, rows=layer.heads)
    k = op.rms_norm(t, layer.project(normed, "k_proj"), layer.norm_weight("k_norm", dim),
                    late_cast=True, rows=layer.kv_heads)  # fmt: skip
    v = layer.project(normed, "v_proj")
    q_turned, k_turned = (
        op.rotate(t, q, layer.stream, share), op.rotate(t, k, layer.stream, share)
    )  # fmt: skip
    q, k = q_turned, k_turned
    del q_turned, k_turned
    out = attend(layer, q, k, v)
    out = op.multiply(t, out, op.unary(t, gate, saves_output=True))
    h = layer.project(out, "o_proj")
    del out, q, k, v, gate, normed
    return _second_half(layer, x, h)


def gated_delta_layer(layer: Layer, x: Tensor) -> Tensor:
    """Projections, a short convolution, the delta rule by chunks, a gated norm."""
    t, config = layer.tape, layer.shape.config
    key_heads, value_heads, key_dim, value_dim = (
        _size(config.get(name), default)
        for name, default in (
            ("linear_num_key_heads", 16), ("linear_num_value_heads", 32),
            ("linear_key_head_dim", 128), ("linear_value_head_dim", 128),
        )
    )  # fmt: skip
    keys, values = key_heads * key_dim, value_heads * value_dim
    normed = late_norm(layer, x, "input_norm")
    mixed = layer.project(normed, "in_proj_qkv")
    z = layer.project(normed, "in_proj_z")
    b = layer.project(normed, "in_proj_b")
    a = layer.project(normed, "in_proj_a")
    mixed = op.convolution(t, mixed)
    mixed = op.unary(t, mixed)
    total = 2 * keys + values
    q, k, v = op.split(t, mixed, keys / total, keys / total, values / total)
    del mixed
    times = value_heads // key_heads
    q, k = op.clone(t, q), op.clone(t, k)
    beta = op.unary(t, b, saves_output=True)
    decay = op.scale(t, op.unary(t, op.cast(t, a, "float32")))
    del a, b
    if times > 1:
        q, k = op.repeat_heads(t, q, times), op.repeat_heads(t, k, times)
    out = op.chunked_delta_rule(t, q, k, v, beta, decay, value_heads, CHUNK)
    del q, k, v, beta, decay
    out = op.rms_norm(t, out, layer.norm_weight("norm", value_dim), rows=value_heads)
    gate = op.unary(t, op.cast(t, z, "float32"))
    out = op.cast(t, op.multiply(t, out, gate), layer.stream)
    h = layer.project(out, "out_proj")
    del out, gate, z, normed
    return _second_half(layer, x, h)


def _second_half(layer: Layer, x: Tensor, h: Tensor) -> Tensor:
    t = layer.tape
    h = op.add(t, x, h)
    normed = late_norm(layer, h, "post_norm")
    m = gated_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def _size(value: object, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default
