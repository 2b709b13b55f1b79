"""One decoder layer of each architecture, written in the order of transformers 5.17's code.

The functions below mirror `modeling_*.py` line by line, down to what a local variable keeps
alive, because that order decides the peak. `Layer` holds what they share: the weights, the
adapters, and the dtypes of the stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loracle.domain.model import Linear, ModelShape
from loracle.estimate import operations as op
from loracle.estimate.tape import Tape, Tensor, Weight


@dataclass(slots=True)
class Layer:
    """What a layer's code needs to know: sizes, dtypes, adapters, kernels.

    `stream` is the dtype of the residual stream and of the norms' weights (fp32 after PEFT's
    kbit upcast), `dtype` that of the base's Linear weights. `kernel` is cudnn, flash, efficient
    or eager.
    """

    tape: Tape
    shape: ModelShape
    rows: Mapping[str, Linear]  # by leaf name
    targets: frozenset[str]
    stream: str
    dtype: str
    quant: str | None
    compute: str
    trained: bool  # full fine-tuning
    rank: int
    dropout: float
    lora_dtype: str
    kernel: str
    weights: dict[str, Weight] = field(default_factory=dict)

    def weight(self, name: str, count: float, dtype: str, trained: bool) -> Weight:
        """A weight of this layer, the same each time it is asked for."""
        known = self.weights.get(name)
        if known is None:
            known = self.weights[name] = Weight(self.tape, count, dtype, trained)
        return known

    def norm_weight(self, name: str, width: int) -> Weight:
        """The scale of a norm."""
        return self.weight(name, width, self.stream, self.trained)

    def project(self, x: Tensor, name: str) -> Tensor:
        """A Linear layer, with its adapter where it is a target."""
        row = self.rows[name]
        base = self.base(x, row)
        if name not in self.targets:
            return base
        down = self.weight(name + ".A", self.rank * row.in_features, self.lora_dtype, True)
        up = self.weight(name + ".B", self.rank * row.out_features, self.lora_dtype, True)
        t = self.tape
        result = base.dtype
        if self.quant is None:
            x = op.cast(t, x, self.lora_dtype)
        elif self.quant.startswith("nf4"):
            base = op.clone(t, base)
        if self.quant is not None and t.autocast is None:
            x = op.cast(t, x, self.lora_dtype)
        update = op.lora_update(t, x, down, up, self.rank, row.out_features, self.dropout)
        if self.quant is not None and t.autocast is None:
            update = op.cast(t, update, result)
        base = op.add(t, base, update)
        del update
        return op.cast(t, base, result) if self.quant is None else base

    def base(self, x: Tensor, row: Linear) -> Tensor:
        """The frozen (or fully trained) Linear layer itself."""
        t = self.tape
        if self.quant == "int8":
            return op.linear_8bit(t, x, row.in_features, row.out_features)
        if self.quant is not None:
            return op.linear_4bit(
                t, x, row.in_features, row.out_features, self.compute, self.quant == "nf4-double"
            )
        weight = self.weight(row.name, row.in_features * row.out_features, self.dtype, self.trained)
        bias = None
        if row.bias and self.trained:
            bias = self.weight(row.name + ".bias", row.out_features, self.dtype, True)
        return op.linear(t, x, weight, row.out_features, bias)


def run_layer(layer: Layer, x: Tensor) -> Tensor:
    """One decoder layer."""
    return _llama(layer, x)


def _llama(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    normed = _norm(layer, x, "input_norm")
    h = _attention(layer, normed)
    del normed
    h = op.add(t, x, h)
    normed = _norm(layer, h, "post_norm")
    m = _gated_mlp(layer, normed)
    del normed
    return op.add(t, h, m)


def _norm(layer: Layer, x: Tensor, name: str) -> Tensor:
    return op.rms_norm(layer.tape, x, layer.norm_weight(name, layer.shape.hidden_size))


def _attention(layer: Layer, x: Tensor) -> Tensor:
    t, shape = layer.tape, layer.shape
    q = layer.project(x, "q_proj")
    k = layer.project(x, "k_proj")
    v = layer.project(x, "v_proj")
    if shape.qk_norm:
        q = _head_norm(layer, q, "q_norm")
        k = _head_norm(layer, k, "k_norm")
    q_turned = op.rotate(t, q, layer.stream)
    k_turned = op.rotate(t, k, layer.stream)
    q, k = q_turned, k_turned
    del q_turned, k_turned
    out = attend(layer, q, k, v)
    return layer.project(out, "o_proj")


def _head_norm(layer: Layer, x: Tensor, name: str) -> Tensor:
    return op.rms_norm(layer.tape, x, layer.norm_weight(name, layer.shape.head_dim))


def attend(layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The attention kernel of the setting."""
    t, shape = layer.tape, layer.shape
    if layer.kernel == "eager":
        return op.eager_attention(
            t, q, k, v, shape.num_heads, shape.num_kv_heads, shape.head_dim, layer.stream
        )
    return op.fused_attention(
        t, q, k, v, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim,
        layer.kernel,
    )  # fmt: skip


def _gated_mlp(layer: Layer, x: Tensor) -> Tensor:
    t = layer.tape
    gate = op.unary(t, layer.project(x, "gate_proj"))
    up = layer.project(x, "up_proj")
    inner = op.multiply(t, gate, up)
    del gate, up
    return layer.project(inner, "down_proj")
