"""Norms as transformers writes them out, line by line."""

from collections.abc import Sequence

from loracle.estimate.decoder.ops.elementwise import add, by_weight, cast, promote, square
from loracle.estimate.decoder.tape import Saved, Tape, Tensor, Weight, attach, empty, like, widths


def rms_norm(
    t: Tape, x: Tensor, weight: Weight | None, *, late_cast: bool = False, rows: float = 1
) -> Tensor:
    """transformers' RMSNorm, line by line: fp32 inside, `weight * x.to(dtype)` outside.

    `late_cast` is the order of Gemma and OLMo 2: multiply in fp32, then cast back. `rows` is how
    many rows a token has (heads, where each head is normed).
    """
    source = x.dtype
    x = cast(t, x, "float32")
    squares = square(t, x)
    mean = _row_mean(t, squares, rows)
    del squares
    root = _rsqrt(t, mean)
    del mean
    x = by_row(t, x, root)
    del root
    if weight is None:
        return cast(t, x, source)
    if late_cast:
        return cast(t, by_weight(t, x, weight), source)
    return by_weight(t, cast(t, x, source), weight)


def _row_mean(t: Tape, x: Tensor, rows: float = 1) -> Tensor:
    whole = x.elements
    return attach(
        t, empty(t, widths(rows), x.dtype), lambda grad: (empty(t, whole, grad.dtype),), x
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


def by_row(t: Tape, x: Tensor, row: Tensor) -> Tensor:
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

    return attach(t, like(t, x, promote(x.dtype, row.dtype)), run, x, row)


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


def centred_norm(t: Tape, x: Tensor, weight: Weight) -> Tensor:
    """Cohere's LayerNorm, line by line in fp32: the difference from the mean is made twice."""
    source = x.dtype
    x = cast(t, x, "float32")
    mean = _row_mean(t, x)
    squares = square(t, add(t, x, mean))
    variance = _row_mean(t, squares)
    del squares
    centred = add(t, x, mean)
    del x, mean
    root = _rsqrt(t, variance)
    del variance
    out = by_row(t, centred, root)
    del centred, root
    return cast(t, by_weight(t, out, weight), source)
