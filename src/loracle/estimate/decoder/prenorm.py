"""Pre-norm decoders: llama and those that differ from it in one place."""

from collections.abc import Callable

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.experts import expert_block, gpt_oss_experts, latent_attention
from loracle.estimate.decoder.layers import (
    Layer,
    fused_gate_mlp,
    fused_heads,
    gated_mlp,
    late_norm,
    layer_norm,
    norm,
    plain_mlp,
    rotary_share,
    split_heads_attention,
    turned_attention,
)
from loracle.estimate.decoder.tape import Tensor


def llama_layer(layer: Layer, x: Tensor) -> Tensor:
    """RMSNorm, attention, RMSNorm, gated (or plain) MLP."""
    return pre_norm_layer(layer, x, gated=layer.shape.mlp_gated)


def pre_norm_layer(layer: Layer, x: Tensor, gated: bool) -> Tensor:
    """residual + attention(norm(x)), then residual + mlp(norm(x))."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = gated_mlp(layer, normed) if gated else plain_mlp(layer, normed, "up_proj", "down_proj")
    del normed
    return op.add(t, h, m)


def split_attention(layer: Layer, x: Tensor) -> Tensor:
    """Split projections, with norms of each head's query and key where the model has them."""
    if "kv_b_proj" in layer.rows:
        return latent_attention(layer, x)
    if not layer.shape.qk_norm:
        return split_heads_attention(layer, x)
    t, dim = layer.tape, layer.head_dim
    q = op.rms_norm(t, layer.project(x, "q_proj"), layer.norm_weight("q_norm", dim),
                    rows=layer.heads)  # fmt: skip
    k = op.rms_norm(t, layer.project(x, "k_proj"), layer.norm_weight("k_norm", dim),
                    rows=layer.kv_heads)  # fmt: skip
    v = layer.project(x, "v_proj")
    return turned_attention(layer, t, q, k, v)


def granite_layer(layer: Layer, x: Tensor) -> Tensor:
    """Llama with the branch scaled before it joins the residual."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_attention(layer, normed)
    del normed
    h = op.add(t, x, op.scale(t, h))
    normed = norm(layer, h, "post_norm")
    m = expert_block(layer, normed) if layer.shape.num_experts else gated_mlp(layer, normed)
    del normed
    return op.add(t, h, op.scale(t, m))


def routed_layer(layer: Layer, x: Tensor) -> Tensor:
    """Llama with an expert block for an MLP."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = expert_block(layer, normed)
    del normed
    return op.add(t, h, m)


def gpt_oss_layer(layer: Layer, x: Tensor) -> Tensor:
    """Attention with a sink, and routed experts with biases."""
    t = layer.tape
    normed = late_norm(layer, x, "input_norm")
    q = layer.project(normed, "q_proj")
    k = layer.project(normed, "k_proj")
    v = layer.project(normed, "v_proj")
    q_turned, k_turned = op.rotate_pairs(t, q, layer.stream), op.rotate_pairs(t, k, layer.stream)
    q, k = q_turned, k_turned
    del q_turned, k_turned
    out = op.sink_attention(t, q, k, v, layer.heads, layer.kv_heads, layer.head_dim, layer.stream)
    h = layer.project(out, "o_proj")
    del out, q, k, v, normed
    h = op.add(t, x, h)
    normed = late_norm(layer, h, "post_norm")
    m = gpt_oss_experts(layer, normed)
    del normed
    return op.add(t, h, m)


def phi3_layer(layer: Layer, x: Tensor) -> Tensor:
    """Fused query-key-value and gate-up projections."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    q, k, v = fused_heads(layer, normed, "qkv_proj")
    h = turned_attention(layer, t, q, k, v, share=rotary_share(layer.shape))
    del normed, q, k, v
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = fused_gate_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def chatglm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Phi-3's layout under ChatGLM's names, half of each head rotated."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    q, k, v = fused_heads(layer, normed, "query_key_value")
    h = turned_attention(layer, t, q, k, v, out="dense", share=0.5)
    del normed, q, k, v
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = fused_gate_mlp(layer, normed, "dense_h_to_4h", "dense_4h_to_h")
    del normed
    return op.add(t, h, m)


def packed_layer(names: tuple[str, ...]) -> Callable[[Layer, Tensor], Tensor]:
    """Remote-code llamas: a fused projection (W_pack, wqkv), llama's MLP under other names."""
    joint, out, gate, up, down = names

    def run(layer: Layer, x: Tensor) -> Tensor:
        t = layer.tape
        normed = norm(layer, x, "input_norm")
        q, k, v = fused_heads(layer, normed, joint)
        h = turned_attention(layer, t, q, k, v, out=out)
        del normed, q, k, v
        h = op.add(t, x, h)
        normed = norm(layer, h, "post_norm")
        one = op.unary(t, layer.project(normed, gate))
        two = layer.project(normed, up)
        inner = op.multiply(t, one, two)
        del one, two
        m = layer.project(inner, down)
        del inner, normed
        return op.add(t, h, m)

    return run


def glm_layer(layer: Layer, x: Tensor) -> Tensor:
    """Split projections, gate and up fused, half of each head rotated."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed, share=rotary_share(layer.shape, 0.5))
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = fused_gate_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def glm4_layer(layer: Layer, x: Tensor) -> Tensor:
    """GLM with norms after both branches as well."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed, share=rotary_share(layer.shape, 0.5))
    del normed
    h = op.add(t, x, norm(layer, h, "post_attention_norm"))
    normed = norm(layer, h, "post_norm")
    m = fused_gate_mlp(layer, normed)
    del normed
    return op.add(t, h, norm(layer, m, "post_mlp_norm"))


def starcoder2_layer(layer: Layer, x: Tensor) -> Tensor:
    """LayerNorm and a plain MLP."""
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = layer_norm(layer, h, "post_norm")
    m = plain_mlp(layer, normed, "c_fc", "c_proj")
    del normed
    return op.add(t, h, m)


def olmo_layer(layer: Layer, x: Tensor) -> Tensor:
    """LayerNorm without weights, fp32 inside, cast back."""
    t = layer.tape
    stream = layer.stream
    normed = op.cast(t, op.layer_norm(t, x, None), stream)
    h = split_heads_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = op.cast(t, op.layer_norm(t, h, None), stream)
    m = gated_mlp(layer, normed)
    del normed
    return op.add(t, h, m)
