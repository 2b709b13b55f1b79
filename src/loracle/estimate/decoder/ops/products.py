"""Matrix products: frozen, trained, quantised, and PEFT's low-rank update.

Sources: torch's derivatives.yaml, bitsandbytes 0.50 (autograd/_functions.py, backends/cuda/ops.py),
PEFT 0.21 (tuners/lora/layer.py, bnb.py).
"""

from collections.abc import Sequence

from loracle.estimate.decoder.ops.elementwise import cast, dropout, scale
from loracle.estimate.decoder.tape import (
    Saved,
    Storage,
    Tape,
    Tensor,
    Weight,
    attach,
    empty,
    widths,
)  # fmt: skip


def low(t: Tape, x: Tensor) -> Tensor:
    """An argument of a matrix operation under autocast."""
    return cast(t, x, t.autocast) if t.autocast else x


def low_weight(t: Tape, weight: Weight) -> Tensor:
    """A weight under autocast: trained fp32 weights are cast once and cached until it ends."""
    if not t.autocast or weight.dtype == t.autocast:
        return weight
    if weight.node is None or weight.dtype != "float32":
        return cast(t, weight, t.autocast, "cast")
    known = t.cast_cache.get(id(weight))
    if known is None:
        known = t.cast_cache[id(weight)] = cast(t, weight, t.autocast, "cast")
    return known


def linear(t: Tape, x: Tensor, weight: Weight, width: float, bias: Weight | None = None) -> Tensor:
    """F.linear: saves the input for a trained weight, the weight for an input with a gradient."""
    x, w = low(t, x), low_weight(t, weight)
    held = Saved(t, *([x] if w.node else []), *([w] if x.node else []))
    out = empty(t, widths(width), x.dtype)
    trained, wanted = w.node is not None, x.node is not None
    count, elements, w_dtype = w.elements, x.elements, w.dtype
    has_bias = bias is not None and bias.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads: list[Tensor | None] = [None, None]
        if trained:
            grads[1] = empty(t, count, w_dtype)
        if wanted:
            grads[0] = empty(t, elements, grad.dtype)
        if has_bias:
            grads.append(empty(t, (width, 0.0, 0.0), grad.dtype))
        del kept
        return grads

    inputs: list[Tensor] = [x, w]
    if bias is not None:
        inputs.append(bias)
    return attach(t, out, run, *inputs)


def linear_4bit(
    t: Tape, x: Tensor, inward: int, outward: int, compute: str, double: bool
) -> Tensor:
    """bitsandbytes' Linear4bit: dequantises the whole weight in both passes, saves nothing."""
    source = x.dtype
    x = cast(t, x, compute)
    count = inward * outward
    scales = float(count // 64 * 4)
    scratch = [Storage(t, (scales * 2 if double else 0.0, 0.0, 0.0), "dequant")]
    scratch.append(Storage(t, (count * 2.0, 0.0, 0.0), "dequant"))
    out = empty(t, widths(outward), compute)
    scratch.clear()

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        scale = Storage(t, (scales if double else 0.0, 0.0, 0.0), "dequant")
        weight = Storage(t, (count * 2.0, 0.0, 0.0), "dequant")
        del scale
        back = empty(t, widths(inward), grad.dtype)
        del weight
        return (back,)

    return cast(t, attach(t, out, run, x), source)


def linear_8bit(t: Tape, x: Tensor, inward: int, outward: int) -> Tensor:
    """LLM.int8: int8 copies of the input, an int32 product, and a 16-bit weight going back."""
    source = x.dtype
    x = cast(t, x, "float16")
    quantised = empty(t, widths(inward), "uint8")
    product = empty(t, widths(outward), "float32")
    out = empty(t, widths(outward), "float16")
    del quantised, product
    count = float(inward * outward)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        weight = Storage(t, (count * 2.0, 0.0, 0.0), "dequant")
        back = empty(t, widths(inward), grad.dtype)
        del weight
        return (back,)

    return cast(t, attach(t, out, run, x), source)


def lora_update(
    t: Tape, x: Tensor, down: Weight, up: Weight, rank: int, outward: int, p: float
) -> Tensor:
    """lora_B(lora_A(dropout(x))) * scaling."""
    inner = linear(t, dropout(t, x, p), down, rank)
    outer = linear(t, inner, up, outward)
    del inner
    return scale(t, outer)
