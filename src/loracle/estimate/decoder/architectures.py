"""Which layers an architecture has, and in which order their parts run.

One function per layout of transformers 5.17; `LAYERS` names the layout of each model type, and
`kinds_of` the kinds of layer that one model mixes (dense and routed, sliding and full attention).
A model type without an entry has no law here and is refused.
"""

from collections.abc import Callable

from loracle.domain.model import ModelShape
from loracle.errors import UnsupportedModel
from loracle.estimate.decoder.classic import bloom_layer, gpt2_layer, mpt_layer, opt_layer
from loracle.estimate.decoder.delta import gated_attention_layer, gated_delta_layer
from loracle.estimate.decoder.layers import Layer, centred_norm, late_norm, layer_norm, norm
from loracle.estimate.decoder.parallel import (
    cohere_layer,
    falcon_layer,
    gpt_neox_layer,
    phi_layer,
    stablelm_layer,
)
from loracle.estimate.decoder.postnorm import (
    exaone4_layer,
    gemma2_layer,
    gemma4_layer,
    gemma_layer,
    olmo2_layer,
)
from loracle.estimate.decoder.prenorm import (
    chatglm_layer,
    glm4_layer,
    glm_layer,
    gpt_oss_layer,
    granite_layer,
    llama_layer,
    olmo_layer,
    packed_layer,
    phi3_layer,
    pre_norm_layer,
    routed_layer,
    starcoder2_layer,
)
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
        every = _whole(config.get("full_attention_interval"), 4)
        return _every(count, every, "full_attention", "linear_attention")
    if model in ("gemma2", "gpt_oss"):
        return _every(count, 2, "full_attention", "sliding_attention")
    if model in ("gemma3_text", "gemma4_text"):
        pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
        kinds = _every(count, _whole(pattern, 6), "full_attention", "sliding_attention")
        return (*kinds[:-1], "full_attention") if model == "gemma4_text" else kinds
    if model in ("cohere2", "olmo3", "exaone4"):
        return _every(count, 4, "full_attention", "sliding_attention")
    if 0 < shape.num_moe_layers < count:
        return _dense_and_routed(shape)
    if shape.sliding_window:
        return ("sliding_attention",) * count
    return ("full_attention",) * count


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default


def _every(count: int, every: int, special: str, other: str) -> tuple[str, ...]:
    return tuple(special if (at + 1) % every == 0 else other for at in range(count))


def _dense_and_routed(shape: ModelShape) -> tuple[str, ...]:
    count, config = shape.num_layers, shape.config
    if "first_k_dense_replace" in config or shape.model_type.startswith("deepseek"):
        dense = count - shape.num_moe_layers
        return ("dense",) * dense + ("routed",) * shape.num_moe_layers
    only = config.get("mlp_only_layers")
    dense_at = set(only) if isinstance(only, list | tuple) else set()
    step = _whole(config.get("decoder_sparse_step"), 1)
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
        return pre_norm_layer(layer, x, gated=True)
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


LAYERS: dict[str, Run] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "seed_oss", "internlm3",
         "arcee", "ernie4_5", "helium"), llama_layer,
    ),
    **dict.fromkeys(
        ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "deepseek_v2", "deepseek_v3"),
        routed_layer,
    ),
    **dict.fromkeys(("granite", "granitemoe", "minicpm", "minicpm3"), granite_layer),
    "gpt_oss": gpt_oss_layer,
    "phi3": phi3_layer, "chatglm": chatglm_layer,
    "baichuan": packed_layer(("W_pack", "o_proj", "gate_proj", "up_proj", "down_proj")),
    "internlm2": packed_layer(("wqkv", "wo", "w1", "w3", "w2")),
    "glm": glm_layer, "glm4": glm4_layer, "starcoder2": starcoder2_layer, "olmo": olmo_layer,
    "olmo2": olmo2_layer, "olmo3": olmo2_layer, "exaone4": exaone4_layer,
    "gemma": gemma_layer, "gemma2": gemma2_layer, "gemma3_text": gemma2_layer,
    "gemma4_text": gemma4_layer,
    "cohere": cohere_layer, "cohere2": cohere_layer, "phi": phi_layer, "stablelm": stablelm_layer,
    "gpt_neox": gpt_neox_layer, "falcon": falcon_layer, "bloom": bloom_layer,
    "mpt": mpt_layer, "opt": opt_layer,
    "gpt2": gpt2_layer, "gpt_bigcode": gpt2_layer,
}  # fmt: skip
