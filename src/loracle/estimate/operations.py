"""The operations that decoders are made of, on sizes only (see `estimate/tape.py`).

Each function is one line of transformers' or PEFT's code: what it allocates in the forward pass,
what it saves, and what its gradient allocates. Sources: torch's derivatives.yaml and CUDA kernels
(2.11 to 2.13), bitsandbytes 0.50 (autograd/_functions.py), PEFT 0.21 (tuners/lora).
"""

from collections.abc import Sequence

from loracle.estimate.tape import (
    Node, Saved, Size, Storage, Tape, Tensor, Weight, attach, empty, like, widths,
)  # fmt: skip

_RANK = {"bool": 0, "uint8": 1, "int64": 1, "bfloat16": 2, "float16": 2, "float32": 3}


def promote(*dtypes: str) -> str:
    """The dtype of an elementwise result."""
    return max(dtypes, key=_RANK.__getitem__)


def cast(t: Tape, x: Tensor, dtype: str, kind: str = "activation") -> Tensor:
    """x.to(dtype): itself where nothing changes; the gradient is cast back."""
    if x.dtype == dtype:
        return x
    out = empty(t, x.elements, dtype, kind)
    source = x.dtype

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        return (like(t, grad, source),)

    return attach(t, out, run, x)


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
    out = empty(t, (x.elements[0] and width, width, 0.0), x.dtype)
    held = Saved(t, *([x] if w.node else []), *([w] if x.node else []))
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


def dropout(t: Tape, x: Tensor, p: float) -> Tensor:
    """Dropout in training: a new tensor and a bool mask that is saved."""
    if p == 0:
        return x
    out = like(t, x)
    mask = like(t, x, "bool")
    held = Saved(t, mask)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        del kept
        return (back,)

    return attach(t, out, run, x)


def clone(t: Tape, x: Tensor) -> Tensor:
    """A copy; the gradient passes."""
    return attach(t, like(t, x), lambda grad: (grad,), x)


def add(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x + y: saves nothing, hands its gradient to both."""
    out = like(t, x, promote(x.dtype, y.dtype))
    return attach(t, out, lambda grad: (grad, grad), x, y)


def scale(t: Tape, x: Tensor) -> Tensor:
    """x times a number, or minus x."""
    return attach(t, like(t, x), lambda grad: (like(t, grad),), x)


def by_constant(t: Tape, x: Tensor, dtype: str) -> Tensor:
    """x times (or plus) a tensor that needs no gradient and is kept elsewhere."""
    out = like(t, x, promote(x.dtype, dtype))
    return attach(t, out, lambda grad: (like(t, grad),), x)


def plus_constant(t: Tape, x: Tensor, dtype: str) -> Tensor:
    """x plus a tensor that needs no gradient."""
    out = like(t, x, promote(x.dtype, dtype))
    return attach(t, out, lambda grad: (grad,), x)


def by_weight(t: Tape, x: Tensor, weight: Weight) -> Tensor:
    """x times a vector of weights: saves x only where the weights are trained."""
    out = like(t, x, promote(x.dtype, weight.dtype))
    trained = weight.node is not None
    held = Saved(t, *([x] if trained else []))

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        grads: list[Tensor | None] = [back]
        if trained:
            full = like(t, grad)
            grads.append(empty(t, weight.elements, grad.dtype))
            del full
        del kept
        return grads

    return attach(t, out, run, x, *([weight] if trained else []))


def multiply(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x * y of the same size, both with gradients: saves both."""
    out = like(t, x, promote(x.dtype, y.dtype))
    held = Saved(t, x, y)
    first, second = x.node is not None, y.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads = (like(t, grad) if first else None, like(t, grad) if second else None)
        del kept
        return grads

    return attach(t, out, run, x, y)


def unary(t: Tape, x: Tensor, *, saves_output: bool = False) -> Tensor:
    """An activation with one kernel each way (silu, gelu, tanh, relu, sigmoid)."""
    out = like(t, x)
    held = Saved(t, out if saves_output else x)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        del kept
        return (back,)

    return attach(t, out, run, x)


def part(t: Tape, x: Tensor, share: float) -> Tensor:
    """A slice: a view whose gradient is a full tensor of zeros with the slice filled in."""
    whole = x.elements
    elements = (whole[0] * share, whole[1] * share, whole[2] * share)
    out = Tensor(x.storage, elements, x.dtype)
    return attach(t, out, lambda grad: (empty(t, whole, grad.dtype),), x)


def cat(t: Tape, *parts: Tensor) -> Tensor:
    """Concatenation: a new tensor; the gradients are views of the incoming one."""
    elements: Size = (
        sum(one.elements[0] for one in parts),
        sum(one.elements[1] for one in parts),
        sum(one.elements[2] for one in parts),
    )
    sizes = [one.elements for one in parts]
    out = empty(t, elements, promote(*(one.dtype for one in parts)))

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        return [Tensor(grad.storage, size, grad.dtype) for size in sizes]

    return attach(t, out, run, *parts)


def split(t: Tape, x: Tensor, *shares: float) -> list[Tensor]:
    """Views of one tensor (split, chunk, unbind); the gradients are put together in one."""
    whole = x.elements
    pieces = [
        Tensor(x.storage, (whole[0] * s, whole[1] * s, whole[2] * s), x.dtype) for s in shares
    ]
    if x.node is None:
        return pieces
    waiting: list[Tensor] = []
    joint = Node(t, lambda grad: (_joined(t, waiting, whole, grad),), [x.node], x.dtype, whole)
    for piece in pieces:
        piece.node = Node(t, _collector(waiting), [joint], x.dtype, piece.elements)
    # The engine sums what meets at a node; the pieces hand over nothing but the last one.
    return pieces


def _collector(waiting: list[Tensor]):  # type: ignore[no-untyped-def] # noqa: ANN202
    def run(grad: Tensor) -> Sequence[Tensor | None]:
        waiting.append(grad)
        return (Tensor(None, (0.0, 0.0, 0.0), grad.dtype),)

    return run


def _joined(t: Tape, waiting: list[Tensor], whole: Size, grad: Tensor) -> Tensor:
    out = empty(t, whole, grad.dtype)
    waiting.clear()
    return out


# --- norms ---------------------------------------------------------------------------------------


def rms_norm(t: Tape, x: Tensor, weight: Weight | None, *, late_cast: bool = False) -> Tensor:
    """transformers' RMSNorm, line by line: fp32 inside, `weight * x.to(dtype)` outside.

    `late_cast` is the order of Gemma and OLMo 2: multiply in fp32, then cast back.
    """
    source = x.dtype
    x = cast(t, x, "float32")
    squares = _square(t, x)
    mean = _row_mean(t, squares)
    del squares
    root = _rsqrt(t, mean)
    del mean
    x = _by_row(t, x, root)
    del root
    if weight is None:
        return cast(t, x, source)
    if late_cast:
        return cast(t, by_weight(t, x, weight), source)
    return by_weight(t, cast(t, x, source), weight)


def _square(t: Tape, x: Tensor) -> Tensor:
    held = Saved(t, x)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        power = like(t, grad)
        doubled = like(t, grad)
        back = like(t, grad)
        del doubled, power, kept
        return (back,)

    return attach(t, like(t, x), run, x)


def _row_mean(t: Tape, x: Tensor) -> Tensor:
    whole = x.elements
    return attach(
        t, empty(t, widths(1), x.dtype), lambda grad: (empty(t, whole, grad.dtype),), x
    )  # fmt: skip


def _rsqrt(t: Tape, mean: Tensor) -> Tensor:
    shifted = like(t, mean)
    out = like(t, mean)
    held = Saved(t, out)
    del shifted

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        del kept
        return (back,)

    return attach(t, out, run, mean)


def _by_row(t: Tape, x: Tensor, row: Tensor) -> Tensor:
    """x times one number a row: the row's gradient needs a full product before it is summed."""
    held = Saved(t, x, row)
    row_elements = row.elements

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        full = like(t, grad)
        summed = empty(t, row_elements, grad.dtype)
        del full, kept
        return (back, summed)

    return attach(t, like(t, x), run, x, row)


def layer_norm(t: Tape, x: Tensor, weight: Weight | None) -> Tensor:
    """F.layer_norm: under autocast it runs, and returns, in fp32."""
    if t.autocast:
        x = cast(t, x, "float32")
    out = like(t, x)
    statistics = empty(t, widths(2), "float32")
    held = Saved(t, x, statistics)
    trained = weight is not None and weight.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads: list[Tensor | None] = [like(t, grad)]
        if trained and weight is not None:
            grads.append(empty(t, weight.elements, weight.dtype))
        del kept
        return grads

    return attach(t, out, run, x, *([weight] if trained and weight is not None else []))


# --- attention -----------------------------------------------------------------------------------


def rotate(t: Tape, x: Tensor, dtype: str, share: float = 1.0) -> Tensor:
    """Rotary positions by halves: x cos + rotate_half(x) sin, on a share of each head.

    `dtype` is that of cos and sin, which is that of the residual stream.
    """
    rest = None
    if share < 1:
        rest = part(t, x, 1 - share)
        x = part(t, x, share)
    straight = by_constant(t, x, dtype)
    second = part(t, x, 0.5)
    minus = scale(t, second)
    del second
    first = part(t, x, 0.5)
    turned = cat(t, minus, first)
    del minus, first
    crossed = by_constant(t, turned, dtype)
    del turned
    out = add(t, straight, crossed)
    del straight, crossed
    return out if rest is None else cat(t, out, rest)


def repeat_heads(t: Tape, x: Tensor, times: int) -> Tensor:
    """repeat_kv: a copy for every query head; the gradient is summed back."""
    if times == 1:
        return x
    small = x.elements
    big: Size = (small[0] * times, small[1] * times, small[2] * times)
    out = empty(t, big, x.dtype)
    return attach(t, out, lambda grad: (empty(t, small, grad.dtype),), x)


def fused_attention(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, head_dim: int,
    value_dim: int, kernel: str,
) -> Tensor:  # fmt: skip
    """Scaled dot product attention without a score matrix; kernel: cudnn, flash or efficient.

    Saves q, k, v, the output and one fp32 log-sum-exp a query row. The backward kernels keep fp32
    accumulators of the query gradient, and FlashAttention expands grouped heads.
    """
    q, k, v = low(t, q), low(t, k), low(t, v)
    out = empty(t, widths(heads * value_dim), q.dtype)
    sums = empty(t, widths(heads), "float32")
    held = Saved(t, q, k, v, out, sums)
    shapes = [q.elements, k.elements, v.elements]
    grouped = heads != kv_heads

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads = [empty(t, one, grad.dtype) for one in shapes]
        if kernel == "cudnn":
            scratch = widths(heads * (head_dim + 1) * 4)
        elif kernel == "flash":
            wide = (head_dim + 31) // 32 * 32
            extra = 2 * heads * head_dim * 2 if grouped else 0
            scratch = widths(heads * (wide + 1) * 4 + extra)
        else:
            scratch = widths(heads * 4)
        t.temporary("activation", scratch)
        del kept
        return grads

    return attach(t, out, run, q, k, v)


def eager_attention(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, value_dim: int,
    stream: str, softcap: bool = False,
) -> Tensor:  # fmt: skip
    """eager_attention_forward: score matrices in full, softmax in fp32, grouped heads copied."""
    query_dtype = q.dtype
    k, v = repeat_heads(t, k, heads // kv_heads), repeat_heads(t, v, heads // kv_heads)
    scores = scale(t, batched(t, q, k, (0.0, 0.0, float(heads))))
    if softcap:
        scores = scale(t, unary(t, scale(t, scores), saves_output=True))
    scores = plus_constant(t, scores, stream)
    weights = softmax(t, scores)
    del scores
    weights = cast(t, weights, query_dtype)
    return batched(t, weights, v, widths(heads * value_dim))


def batched(t: Tape, x: Tensor, y: Tensor, elements: Size) -> Tensor:
    """torch.matmul of two tensors with gradients: saves both (after autocast)."""
    x, y = low(t, x), low(t, y)
    out = empty(t, elements, x.dtype)
    held = Saved(t, x, y)
    shapes = (x.elements, y.elements)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads = [empty(t, one, grad.dtype) for one in shapes]
        del kept
        return grads

    return attach(t, out, run, x, y)


def softmax(t: Tape, x: Tensor) -> Tensor:
    """Softmax in fp32: saves its output; its gradient needs a product of the same size."""
    x = cast(t, x, "float32")
    out = like(t, x)
    held = Saved(t, out)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        product = like(t, grad)
        back = like(t, grad)
        del product, kept
        return (back,)

    return attach(t, out, run, x)


# --- adapters ------------------------------------------------------------------------------------


def lora_update(
    t: Tape, x: Tensor, down: Weight, up: Weight, rank: int, outward: int, p: float
) -> Tensor:
    """lora_B(lora_A(dropout(x))) * scaling."""
    inner = linear(t, dropout(t, x, p), down, rank)
    outer = linear(t, inner, up, outward)
    del inner
    return scale(t, outer)
