"""Routed experts, GPT-OSS's variant of them, and multi-head latent attention.

transformers 5 runs the experts of a layer as one grouped matrix product
(integrations/moe.py, grouped_mm_experts_forward): every token is copied once per chosen expert,
and every intermediate is as many times wider. The experts themselves stay in 16 bits.
"""

from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.layers import Layer, activate, attend, gated_mlp
from loracle.estimate.decoder.tape import Tensor, Weight

# The routers that hand their weights over in the dtype of their logits; the others stay in fp32.
_NARROW_WEIGHTS = frozenset({"qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"})


def normed_route(layer: Layer, x: Tensor) -> Tensor:
    """Gemma 4's router: a norm without weights, a learned scale, a Linear, a softmax in fp32."""
    t, shape = layer.tape, layer.shape
    normed = op.rms_norm(t, x, None, late_cast=True)
    scaled = op.by_weight(t, normed, layer.norm_weight("router.scale", shape.hidden_size))
    del normed
    scaled = op.scale(t, scaled)
    chances = op.softmax(t, layer.project(scaled, "proj"))
    del scaled
    weights = op.pick(t, chances, shape.experts_per_token / shape.num_experts)
    return op.scale(t, weights)


def expert_block(layer: Layer, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Router, routed experts, and shared experts where the model has them.

    `weights` are those of a router that ran before.
    """
    t = layer.tape
    if weights is None:
        weights = _route(layer, x)
    out = _grouped(layer, x, weights)
    del weights
    if "shared.down_proj" in layer.rows:
        shared = gated_mlp(layer, x, "shared.")
        if "shared_expert_gate" in layer.rows:
            gate = op.unary(t, layer.project(x, "shared_expert_gate"), saves_output=True)
            shared = op.by_row(t, shared, gate)
        out = op.add(t, out, shared)
    return out


def _route(layer: Layer, x: Tensor) -> Tensor:
    """Scores of every expert in fp32, the chosen ones' weights."""
    t, shape = layer.tape, layer.shape
    router = layer.weight("router", float(shape.hidden_size * shape.num_experts),
                          layer.stream, layer.trained)  # fmt: skip
    logits = op.linear(t, x, router, shape.num_experts)
    weights = op.pick(t, op.softmax(t, logits), shape.experts_per_token / shape.num_experts)
    if shape.model_type in _NARROW_WEIGHTS:
        return op.cast(t, weights, logits.dtype)
    return weights


def _grouped(layer: Layer, x: Tensor, weights: Tensor) -> Tensor:
    t, shape = layer.tape, layer.shape
    times, width = shape.experts_per_token, shape.expert_intermediate_size
    experts = float(shape.num_experts * shape.hidden_size * width)
    up = layer.weight("experts.up", 2 * experts, layer.stream, layer.trained)
    down = layer.weight("experts.down", experts, layer.stream, layer.trained)
    source = x.dtype
    rows = op.gather(t, x, times)
    rows = op.masked(t, rows, in_place=True)
    both = op.masked(t, _product(layer, rows, up, times * 2 * width))
    gate, value = op.split(t, both, 0.5, 0.5)
    del both
    inner = op.multiply(t, activate(layer, gate), value)
    del gate, value
    out = op.masked(t, _product(layer, inner, down, times * shape.hidden_size))
    del inner
    # `rows` and `out` are locals of the function that runs the experts: they live to its end.
    return _joined(layer, out, weights, times, source)


def _joined(layer: Layer, out: Tensor, weights: Tensor, times: int, source: str) -> Tensor:
    """Weigh the experts' rows, put them back in order, and sum them for each token."""
    t = layer.tape
    weighted = op.gather(t, op.by_row(t, out, weights), 1)
    return op.cast(t, op.sum_groups(t, weighted, times), source)


def _product(layer: Layer, x: Tensor, weight: Weight, width: float) -> Tensor:
    """grouped_mm: not on autocast's lists, so the input goes to the weight's dtype."""
    t = layer.tape
    return op.plain_linear(t, op.cast(t, x, weight.dtype), weight, width)


def gpt_oss_experts(layer: Layer, x: Tensor) -> Tensor:
    """Experts with biases and a clamped gate that is computed in single operations."""
    t, shape = layer.tape, layer.shape
    times, width = shape.experts_per_token, shape.expert_intermediate_size
    experts = float(shape.num_experts * shape.hidden_size * width)
    router = layer.weight("router", float(shape.hidden_size * shape.num_experts),
                          layer.stream, layer.trained)  # fmt: skip
    logits = op.linear(t, x, router, shape.num_experts)
    weights = op.softmax(t, op.pick(t, logits, times / shape.num_experts), wide=False)
    del logits
    up = layer.weight("experts.up", 2 * experts, layer.stream, layer.trained)
    down = layer.weight("experts.down", experts, layer.stream, layer.trained)
    source = x.dtype
    rows = op.masked(t, op.gather(t, x, times), in_place=True)
    both = op.masked(t, _product(layer, rows, up, times * 2 * width))
    gate, value = op.part(t, both, 0.5), op.part(t, both, 0.5)
    del both
    gate, value = op.unary(t, gate), op.unary(t, value)
    glu = op.multiply(t, gate, op.unary(t, op.scale(t, gate), saves_output=True))
    inner = op.multiply(t, op.plus_constant(t, value, value.dtype), glu)
    del gate, value, glu
    out = op.masked(t, _product(layer, inner, down, times * shape.hidden_size))
    del inner
    return _joined(layer, out, weights, times, source)


def latent_attention(layer: Layer, x: Tensor) -> Tensor:
    """Multi-head latent attention of DeepSeek V2 and V3 and MiniCPM3."""
    t, config = layer.tape, layer.shape.config
    heads = layer.heads
    rope, nope, value, rank = (
        _size(config.get(key), default)
        for key, default in (
            ("qk_rope_head_dim", 64), ("qk_nope_head_dim", 128), ("v_head_dim", 128),
            ("kv_lora_rank", 512),
        )
    )  # fmt: skip
    if "q_proj" in layer.rows:
        q = layer.project(x, "q_proj")
    else:
        inner = layer.project(x, "q_a_proj")
        inner = op.rms_norm(t, inner, layer.norm_weight("q_a_norm", inner.elements[1]))
        q = layer.project(inner, "q_b_proj")
        del inner
    q_plain, q_rope = op.split(t, q, nope / (nope + rope), rope / (nope + rope))
    del q
    both = layer.project(x, "kv_a_proj_with_mqa")
    latent, k_rope = op.split(t, both, rank / (rank + rope), rope / (rank + rope))
    del both
    latent = op.rms_norm(t, latent, layer.norm_weight("kv_a_norm", rank))
    q_turned = op.rotate_complex(t, q_rope)
    k_turned = op.rotate_complex(t, k_rope)
    del q_rope, k_rope
    query = op.cat(t, q_plain, q_turned)
    del q_plain, q_turned
    expanded = layer.project(latent, "kv_b_proj")
    del latent
    k_plain, v = op.split(t, expanded, nope / (nope + value), value / (nope + value))
    del expanded
    key = op.cat(t, k_plain, op.repeat_view(t, k_turned, heads))
    del k_plain, k_turned
    out = attend(layer, query, key, v, value)
    del query, key, v
    return layer.project(out, "o_proj")


def _size(value: object, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default
