"""Rotary positions, attention kernels, score matrices.

Sources: transformers 5.17 (integrations/sdpa_attention.py, models/*/modeling_*.py), torch's
ATen/native/transformers/cuda and cudnn/MHA.cpp.
"""

from collections.abc import Sequence

from loracle.estimate.decoder.ops.elementwise import (
    add,
    by_constant,
    cast,
    cat,
    part,
    plus_constant,
    scale,
    split,
    unary,
)  # fmt: skip
from loracle.estimate.decoder.ops.products import low
from loracle.estimate.decoder.tape import (
    Saved,
    Size,
    Tape,
    Tensor,
    attach,
    empty,
    like,
    widths,
)  # fmt: skip


def rotate(t: Tape, x: Tensor, dtype: str, share: float | None = None) -> Tensor:
    """Rotary positions by halves: x cos + rotate_half(x) sin, on a share of each head.

    With a share, the head is cut in two and joined again; None rotates it in one piece. `dtype` is
    that of cos and sin, which is that of the residual stream.
    """
    rest = None
    if share is not None:
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
    value_dim: int, kernel: str, masked: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled dot product attention without a score matrix; kernel: cudnn, flash or efficient.

    Saves q, k, v, the output and one fp32 log-sum-exp a query row. The backward kernels keep fp32
    accumulators of the query gradient, and FlashAttention expands grouped heads.
    """
    q, k, v = low(t, q), low(t, k), low(t, v)
    # A bool mask becomes one of scores in the query's dtype, which the kernel saves.
    bias = [empty(t, (0.0, 0.0, 1.0), q.dtype)] if masked else []
    out = empty(t, widths(heads * value_dim), q.dtype)
    sums = empty(t, widths(heads), "float32")
    held = Saved(t, q, k, v, *bias, out, sums)
    bias.clear()
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
    held = Saved(t, x, y)
    out = empty(t, elements, x.dtype)
    shapes = (x.elements, y.elements)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads = [empty(t, one, grad.dtype) for one in shapes]
        del kept
        return grads

    return attach(t, out, run, x, y)


def softmax(t: Tape, x: Tensor, *, wide: bool = True) -> Tensor:
    """Softmax, in fp32 where `wide`: saves its output; its gradient needs a product as large."""
    if wide:
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


def rotate_pairs(t: Tape, x: Tensor, dtype: str) -> Tensor:
    """GPT-OSS's rotary positions: two halves, two products each."""
    first, second = split(t, x, 0.5, 0.5)
    left = add(t, by_constant(t, first, dtype), scale(t, by_constant(t, second, dtype)))
    right = add(t, by_constant(t, second, dtype), by_constant(t, first, dtype))
    return cat(t, left, right)


def rotate_complex(t: Tape, x: Tensor) -> Tensor:
    """DeepSeek's rotary positions: one complex product in fp32."""
    wide = cast(t, x, "float32")
    return cast(t, by_constant(t, wide, "float32"), x.dtype)


def sink_attention(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, head_dim: int, stream: str
) -> Tensor:
    """GPT-OSS's eager attention: one more column of scores, the maximum taken off."""
    k, v = repeat_heads(t, k, heads // kv_heads), repeat_heads(t, v, heads // kv_heads)
    value_dtype = v.dtype
    scores = scale(t, batched(t, q, k, (0.0, 0.0, float(heads))))
    scores = plus_constant(t, scores, stream)
    scores = cat(t, scores, Tensor(None, (0.0, float(heads), 0.0), scores.dtype))
    scores = plus_constant(t, scores, scores.dtype)
    chances = softmax(t, scores, wide=False)  # its dtype is given, so autocast leaves it
    del scores
    weights = cast(t, chances, value_dtype)
    del chances
    return batched(t, weights, v, widths(heads * head_dim))


def alibi_attention(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, heads: int, head_dim: int, stream: str
) -> Tensor:
    """Bloom's: baddbmm onto alibi, softmax in fp32."""
    source = q.dtype
    scores = batched(t, q, k, (0.0, 0.0, float(heads)))
    scores = plus_constant(t, scores, stream)
    weights = softmax(t, scores)
    del scores
    return batched(t, cast(t, weights, source), v, widths(heads * head_dim))


def math_attention(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, value_dim: int
) -> Tensor:
    """SDPA without a fused kernel: everything in fp32, score matrices in full.

    Key heads that are only broadcast (Falcon's single one) leave no other choice. Source:
    aten/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
    """
    source = low(t, q).dtype
    q, k, v = (cast(t, low(t, one), "float32") for one in (q, k, v))
    q, k = scale(t, q), scale(t, k)
    k, v = repeat_heads(t, k, heads // kv_heads), repeat_heads(t, v, heads // kv_heads)
    outer, t.autocast = t.autocast, None  # below autocast's own dispatch
    try:
        scores = batched(t, q, k, (0.0, 0.0, float(heads)))
        weights = softmax(t, scores)
        t.temporary("activation", (0.0, 0.0, float(heads)))  # which rows are masked whole
        del scores
        out = batched(t, weights, v, widths(heads * value_dim))
        t.temporary("activation", (0.0, 0.0, 2.0 * heads))  # the weights, returned and dropped
    finally:
        t.autocast = outer
    return cast(t, out, source)
