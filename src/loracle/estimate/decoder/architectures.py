"""Which layers an architecture has, and in which order their parts run.

One function per layout of transformers 5.17; `LAYERS` names the layout of each model type, and
`kinds_of` the kinds of layer that one model mixes (dense and routed, sliding and full attention).
A model type without an entry has no law here and is refused.
"""

from collections.abc import Callable

from loracle.domain.model import ModelShape
from loracle.errors import UnsupportedModel
from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.delta import gated_attention_layer, gated_delta_layer
from loracle.estimate.decoder.experts import (
    expert_block,
    gpt_oss_experts,
    latent_attention,
    normed_route,
)
from loracle.estimate.decoder.layers import (
    Layer,
    attend,
    centred_norm,
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
)  # fmt: skip
from loracle.estimate.decoder.tape import Tensor

Run = Callable[[Layer, Tensor], Tensor]


def kinds_of(shape: ModelShape, kind: str | None = None) -> tuple[str, ...]:
    """The kind of each layer, first to last."""
    count, config = shape.num_layers, shape.config
    model = kind or shape.model_type
    if model in ("qwen3_5_text", "gemma4_text", "gemma2", "gemma3_text", "cohere2", "gpt_oss"):
        named = config.get("layer_types")
        if isinstance(named, list) and len(named) == count:
            return tuple(str(one) for one in named)
    if model == "qwen3_5_text":
        every = int(config.get("full_attention_interval") or 4)  # type: ignore[call-overload]
        return _every(count, every, "full_attention", "linear_attention")
    if model in ("gemma2", "gpt_oss"):
        return _every(count, 2, "full_attention", "sliding_attention")
    if model in ("gemma3_text", "gemma4_text"):
        every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
        kinds = _every(count, int(every), "full_attention", "sliding_attention")  # type: ignore[call-overload]
        return (*kinds[:-1], "full_attention") if model == "gemma4_text" else kinds
    if model in ("cohere2", "olmo3", "exaone4"):
        return _every(count, 4, "full_attention", "sliding_attention")
    if 0 < shape.num_moe_layers < count:
        return _dense_and_routed(shape)
    if shape.sliding_window:
        return ("sliding_attention",) * count
    return ("full_attention",) * count


def _every(count: int, every: int, special: str, other: str) -> tuple[str, ...]:
    return tuple(special if (at + 1) % every == 0 else other for at in range(count))


def _dense_and_routed(shape: ModelShape) -> tuple[str, ...]:
    count, config = shape.num_layers, shape.config
    if "first_k_dense_replace" in config or shape.model_type.startswith("deepseek"):
        dense = count - shape.num_moe_layers
        return ("dense",) * dense + ("routed",) * shape.num_moe_layers
    only = config.get("mlp_only_layers")
    dense_at = set(only) if isinstance(only, list | tuple) else set()
    step = int(config.get("decoder_sparse_step") or 1)  # type: ignore[call-overload]
    return tuple(
        "routed" if at not in dense_at and (at + 1) % step == 0 else "dense" for at in range(count)
    )


def run_layer(layer: Layer, x: Tensor, kind: str) -> Tensor:
    """One decoder layer of this kind."""
    model = layer.shape.model_type
    if model == "qwen3_5_text":
        run = gated_delta_layer if kind == "linear_attention" else gated_attention_layer
        return run(layer, x)
    if kind == "dense" and model in LAYERS:
        return _pre_norm(layer, x, gated=True)
    run_this = LAYERS.get(model)
    if run_this is None:
        raise UnsupportedModel(
            "error.shape.unknown", hint="hint.shape.unknown", model=layer.shape.id,
            model_type=model,
        )  # fmt: skip
    return run_this(layer, x)


def final_norm(layer: Layer, x: Tensor) -> Tensor:
    """The norm before the output head."""
    model = layer.shape.model_type
    if model in ("gemma", "gemma2", "gemma3_text", "gemma4_text", "olmo2", "olmo3", "gpt_oss",
                 "qwen3_5_text"):  # fmt: skip
        return late_norm(layer, x, "final")
    if model in ("cohere", "cohere2"):
        return centred_norm(layer, x, "final")
    if layer.shape.norm == "layernorm":
        return layer_norm(layer, x, "final")
    return norm(layer, x, "final")


# --- pre-norm decoders ---------------------------------------------------------------------------


def _llama(layer: Layer, x: Tensor) -> Tensor:
    return _pre_norm(layer, x, gated=layer.shape.mlp_gated)


def _pre_norm(layer: Layer, x: Tensor, gated: bool) -> Tensor:
    """residual + attention(norm(x)), then residual + mlp(norm(x))."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = _attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = gated_mlp(layer, normed) if gated else plain_mlp(layer, normed, "up_proj", "down_proj")
    del normed
    return op.add(t, h, m)


def _attention(layer: Layer, x: Tensor) -> Tensor:
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


def _granite(layer: Layer, x: Tensor) -> Tensor:
    """Llama with the branch scaled before it joins the residual."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = _attention(layer, normed)
    del normed
    h = op.add(t, x, op.scale(t, h))
    normed = norm(layer, h, "post_norm")
    m = expert_block(layer, normed) if layer.shape.num_experts else gated_mlp(layer, normed)
    del normed
    return op.add(t, h, op.scale(t, m))


def _routed(layer: Layer, x: Tensor) -> Tensor:
    """Llama with an expert block for an MLP."""
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = _attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = expert_block(layer, normed)
    del normed
    return op.add(t, h, m)


def _gpt_oss(layer: Layer, x: Tensor) -> Tensor:
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


def _phi3(layer: Layer, x: Tensor) -> Tensor:
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


def _chatglm(layer: Layer, x: Tensor) -> Tensor:
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


def _packed(names: tuple[str, ...]) -> Run:
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


def _glm(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    normed = norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed, share=rotary_share(layer.shape, 0.5))
    del normed
    h = op.add(t, x, h)
    normed = norm(layer, h, "post_norm")
    m = fused_gate_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def _glm4(layer: Layer, x: Tensor) -> Tensor:
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


def _starcoder2(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = layer_norm(layer, h, "post_norm")
    m = plain_mlp(layer, normed, "c_fc", "c_proj")
    del normed
    return op.add(t, h, m)


def _olmo(layer: Layer, x: Tensor) -> Tensor:
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


# --- post-norm and sandwich-norm decoders --------------------------------------------------------


def _olmo2(layer: Layer, x: Tensor) -> Tensor:
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


def _exaone4(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    h = _attention(layer, x)
    h = op.add(t, x, norm(layer, h, "post_attention_norm"))
    m = gated_mlp(layer, h)
    return op.add(t, h, norm(layer, m, "post_mlp_norm"))


def _gemma(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    normed = late_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = late_norm(layer, h, "post_norm")
    m = gated_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def _gemma2(layer: Layer, x: Tensor) -> Tensor:
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


def _gemma4(layer: Layer, x: Tensor) -> Tensor:
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


# --- parallel residuals --------------------------------------------------------------------------


def _cohere(layer: Layer, x: Tensor) -> Tensor:
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


def _phi(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    normed = layer_norm(layer, x, "input_norm")
    h = split_heads_attention(layer, normed, out="dense", share=rotary_share(layer.shape, 0.5))
    m = plain_mlp(layer, normed, "fc1", "fc2")
    return op.add(t, op.add(t, h, m), x)


def _stablelm(layer: Layer, x: Tensor) -> Tensor:
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


def _gpt_neox(layer: Layer, x: Tensor) -> Tensor:
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


def _falcon(layer: Layer, x: Tensor) -> Tensor:
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


# --- older decoders ------------------------------------------------------------------------------


def _bloom(layer: Layer, x: Tensor) -> Tensor:
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


def _mpt(layer: Layer, x: Tensor) -> Tensor:
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


def _opt(layer: Layer, x: Tensor) -> Tensor:
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


def _gpt2(layer: Layer, x: Tensor) -> Tensor:
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


LAYERS: dict[str, Run] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "seed_oss", "internlm3",
         "arcee", "ernie4_5", "helium"), _llama,
    ),
    **dict.fromkeys(
        ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "deepseek_v2", "deepseek_v3"),
        _routed,
    ),
    **dict.fromkeys(("granite", "granitemoe", "minicpm", "minicpm3"), _granite),
    "gpt_oss": _gpt_oss,
    "phi3": _phi3, "chatglm": _chatglm,
    "baichuan": _packed(("W_pack", "o_proj", "gate_proj", "up_proj", "down_proj")),
    "internlm2": _packed(("wqkv", "wo", "w1", "w3", "w2")),
    "glm": _glm, "glm4": _glm4, "starcoder2": _starcoder2, "olmo": _olmo,
    "olmo2": _olmo2, "olmo3": _olmo2, "exaone4": _exaone4,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma2, "gemma4_text": _gemma4,
    "cohere": _cohere, "cohere2": _cohere, "phi": _phi, "stablelm": _stablelm,
    "gpt_neox": _gpt_neox, "falcon": _falcon, "bloom": _bloom, "mpt": _mpt, "opt": _opt,
    "gpt2": _gpt2, "gpt_bigcode": _gpt2,
}  # fmt: skip
