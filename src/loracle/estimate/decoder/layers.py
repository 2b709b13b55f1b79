"""The parts of a decoder layer, written in the order of transformers 5.17's code.

The functions below and in the files beside mirror `modeling_*.py` line by line, down to
what a local variable keeps alive, because that order decides the peak. `Layer` holds what they
share: the weights, the adapters, and the dtypes of the stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loracle.domain.model import Linear, ModelShape
from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.tape import Tape, Tensor, Weight


@dataclass(slots=True, kw_only=True)
class Layer:
    """What a layer's code needs to know: sizes, dtypes, adapters, kernels.

    `stream` is the dtype of the residual stream and of the norms' weights (fp32 after PEFT's
    kbit upcast), `dtype` that of the base's Linear weights. `kernel` is cudnn, flash, efficient,
    math or eager; `masked` says that a score mask is materialised (packing, a sliding window
    that is shorter than the sequence).
    """

    tape: Tape
    shape: ModelShape
    rows: Mapping[str, Linear]  # by leaf name, or by path where a name has two shapes
    targets: frozenset[str]
    stream: str
    dtype: str
    quant: str | None
    compute: str
    trained: bool  # full fine-tuning
    rank: int
    dropout: float
    lora_dtype: str
    dora: bool
    kernel: str
    masked: bool = False
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    weights: dict[str, Weight] = field(default_factory=dict)

    def weight(self, name: str, count: float, dtype: str, trained: bool) -> Weight:
        """A weight of this layer, the same each time it is asked for."""
        known = self.weights.get(name)
        if known is None:
            known = self.weights[name] = Weight(self.tape, count, dtype, trained)
        return known

    def norm_weight(self, name: str, width: float) -> Weight:
        """The scale of a norm."""
        return self.weight(name, width, self.stream, self.trained)

    def project(self, x: Tensor, name: str) -> Tensor:
        """A Linear layer, with its adapter where it is a target."""
        row = self.rows[name]
        base = self.base(x, row, name)
        if row.name not in self.targets:
            return base
        down = self.weight(name + ".A", self.rank * row.in_features, self.lora_dtype, True)
        up = self.weight(name + ".B", self.rank * row.out_features, self.lora_dtype, True)
        t = self.tape
        result = base.dtype
        if self.quant is None or t.autocast is None:
            x = op.cast(t, x, self.lora_dtype)
        if self.quant is not None and self.quant.startswith("nf4"):
            base = op.clone(t, base)
        update = op.lora_update(t, x, down, up, self.rank, row.out_features, self.dropout)
        if self.quant is not None and t.autocast is None:
            update = op.cast(t, update, result)
        if self.dora:
            op.dora_scratch(t, row.in_features * row.out_features)
            base = op.scale(t, base)
        base = op.add(t, base, update)
        del update
        return op.cast(t, base, result) if self.quant is None else base

    def base(self, x: Tensor, row: Linear, name: str) -> Tensor:
        """The frozen (or fully trained) Linear layer itself."""
        t = self.tape
        if self.quant == "int8":
            return op.linear_8bit(t, x, row.in_features, row.out_features)
        if self.quant is not None:
            return op.linear_4bit(
                t, x, row.in_features, row.out_features, self.compute, self.quant == "nf4-double"
            )
        weight = self.weight(name, row.in_features * row.out_features, self.dtype, self.trained)
        bias = None
        if row.bias and self.trained:
            bias = self.weight(name + ".bias", row.out_features, self.dtype, True)
        return op.linear(t, x, weight, row.out_features, bias)


# --- norms ---------------------------------------------------------------------------------------


def norm(layer: Layer, x: Tensor, name: str, width: float | None = None) -> Tensor:
    """LlamaRMSNorm: `weight * x.to(dtype)`."""
    return op.rms_norm(
        layer.tape, x, layer.norm_weight(name, width or layer.shape.hidden_size)
    )  # fmt: skip


def late_norm(layer: Layer, x: Tensor, name: str, width: float | None = None) -> Tensor:
    """The RMSNorm of Gemma, OLMo 2 and GPT-OSS: multiply in fp32, then cast back."""
    weight = layer.norm_weight(name, width or layer.shape.hidden_size)
    return op.rms_norm(layer.tape, x, weight, late_cast=True)


def layer_norm(layer: Layer, x: Tensor, name: str, width: float | None = None) -> Tensor:
    """nn.LayerNorm: fp32 out under autocast."""
    return op.layer_norm(
        layer.tape, x, layer.norm_weight(name, width or layer.shape.hidden_size)
    )  # fmt: skip


def centred_norm(layer: Layer, x: Tensor, name: str, width: float | None = None) -> Tensor:
    """CohereLayerNorm: written out in fp32."""
    weight = layer.norm_weight(name, width or layer.shape.hidden_size)
    return op.centred_norm(layer.tape, x, weight)


# --- attention -----------------------------------------------------------------------------------


def rotary_share(shape: ModelShape, default: float = 1.0) -> float:
    """The share of each head that is rotated."""
    config = shape.config
    rope = config.get("rope_parameters")
    for place in (config, rope if isinstance(rope, Mapping) else {}):
        for key in ("partial_rotary_factor", "rotary_pct"):
            value = place.get(key)
            if isinstance(value, int | float) and 0 < value <= 1:
                return float(value)
    return default


def attend(layer: Layer, q: Tensor, k: Tensor, v: Tensor, value_dim: int = 0) -> Tensor:
    """The attention kernel of the setting."""
    t = layer.tape
    heads, kv_heads, dim = layer.heads, layer.kv_heads, layer.head_dim
    if layer.kernel == "eager":
        return op.eager_attention(
            t, q, k, v, heads, kv_heads, value_dim or dim, layer.stream,
            softcap=layer.shape.attention_softcap is not None,
        )  # fmt: skip
    kernel = layer.kernel
    if kernel == "math":
        return op.math_attention(t, q, k, v, heads, kv_heads, value_dim or dim)
    if layer.masked:
        k = op.repeat_heads(t, k, heads // kv_heads)
        v = op.repeat_heads(t, v, heads // kv_heads)
        kv_heads = heads
        kernel = "efficient" if kernel == "flash" else kernel
    return op.fused_attention(
        t, q, k, v, heads, kv_heads, dim, value_dim or dim, kernel, masked=layer.masked
    )


def split_heads_attention(
    layer: Layer, x: Tensor, *, out: str = "o_proj", share: float | None = None, rope: bool = True
) -> Tensor:
    """q_proj, k_proj, v_proj, rotary positions, the kernel, the output projection."""
    t = layer.tape
    q = layer.project(x, "q_proj")
    k = layer.project(x, "k_proj")
    v = layer.project(x, "v_proj")
    return turned_attention(layer, t, q, k, v, out=out, share=share, rope=rope)


def turned_attention(
    layer: Layer, t: Tape, q: Tensor, k: Tensor, v: Tensor, *, out: str = "o_proj",
    share: float | None = None, rope: bool = True,
) -> Tensor:  # fmt: skip
    """From projected heads to the output projection.

    `share` is that of each head which is rotated and then joined with the rest, even where the
    rest is empty (Phi-3); None rotates in one piece.
    """
    if rope:
        q_turned = op.rotate(t, q, layer.stream, share)
        k_turned = op.rotate(t, k, layer.stream, share)
        q, k = q_turned, k_turned
        del q_turned, k_turned
    mixed = attend(layer, q, k, v)
    if rope and share is not None and _keeps_layout(layer):
        mixed = op.clone(t, mixed)
    return layer.project(mixed, out)


def _keeps_layout(layer: Layer) -> bool:
    """Whether the kernel's output lies in memory as its query does.

    A concatenated query lies head by head, and so does the output of cuDNN and FlashAttention:
    `transpose(1, 2).contiguous()` then copies what the kernel has saved. The memory-efficient
    kernel always writes token by token, and a query that was only multiplied does so too.
    """
    return layer.kernel == "cudnn" or (layer.kernel == "flash" and not layer.masked)


def fused_heads(layer: Layer, x: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """One projection, three slices."""
    t = layer.tape
    qkv = layer.project(x, name)
    groups = layer.heads + 2 * layer.kv_heads
    q = op.part(t, qkv, layer.heads / groups)
    k = op.part(t, qkv, layer.kv_heads / groups)
    v = op.part(t, qkv, layer.kv_heads / groups)
    return q, k, v


# --- MLPs ----------------------------------------------------------------------------------------


def activate(layer: Layer, x: Tensor) -> Tensor:
    """The activation function of the model."""
    t, name = layer.tape, layer.shape.activation
    if name == "gelu_new":
        return op.gelu_new(t, x)
    if name == "relu2":
        return op.square(t, op.unary(t, x, saves_output=True))
    return op.unary(t, x, saves_output=name == "relu")


def gated_mlp(layer: Layer, x: Tensor, prefix: str = "") -> Tensor:
    """down(act(gate(x)) * up(x))."""
    t = layer.tape
    gate = activate(layer, layer.project(x, prefix + "gate_proj"))
    up = layer.project(x, prefix + "up_proj")
    inner = op.multiply(t, gate, up)
    del gate, up
    return layer.project(inner, prefix + "down_proj")


def fused_gate_mlp(
    layer: Layer, x: Tensor, joint: str = "gate_up_proj", down: str = "down_proj"
) -> Tensor:
    """gate, up = joint(x).chunk(2); down(up * act(gate))."""
    t = layer.tape
    both = layer.project(x, joint)
    gate, up = op.split(t, both, 0.5, 0.5)
    del both
    inner = op.multiply(t, up, activate(layer, gate))
    del gate, up
    return layer.project(inner, down)


def plain_mlp(layer: Layer, x: Tensor, up: str, down: str) -> Tensor:
    """down(act(up(x)))."""
    return layer.project(activate(layer, layer.project(x, up)), down)
