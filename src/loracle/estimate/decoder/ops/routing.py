"""Routed experts and state-space pieces: gathers, masks, grouped products, the delta rule.

Source: transformers 5.17, integrations/moe.py (grouped_mm) and models/qwen3_5.
"""

from collections.abc import Sequence

from loracle.estimate.decoder.tape import (
    Saved,
    Size,
    Tape,
    Tensor,
    Weight,
    attach,
    empty,
    like,
    widths,
)  # fmt: skip


def _times(size: Size, factor: float) -> Size:
    return (size[0] * factor, size[1] * factor, size[2] * factor)


def gather(t: Tape, x: Tensor, times: float) -> Tensor:
    """x[index] with `times` rows for each row: a copy; the gradient is put into zeros."""
    small = x.elements
    out = empty(t, _times(small, times), x.dtype)
    return attach(t, out, lambda grad: (empty(t, small, grad.dtype),), x)


def masked(t: Tape, x: Tensor, *, in_place: bool = False) -> Tensor:
    """masked_fill: its gradient is masked into a new tensor as well."""
    out = Tensor(x.storage, x.elements, x.dtype) if in_place else like(t, x)
    return attach(t, out, lambda grad: (like(t, grad),), x)


def pick(t: Tape, x: Tensor, share: float) -> Tensor:
    """topk: a part of each row, whose gradient is scattered into zeros."""
    whole = x.elements
    out = empty(t, _times(whole, share), x.dtype)
    return attach(t, out, lambda grad: (empty(t, whole, grad.dtype),), x)


def plain_linear(t: Tape, x: Tensor, weight: Weight, width: float) -> Tensor:
    """A product outside of autocast's lists: dtypes as they come."""
    out = empty(t, widths(width), x.dtype)
    held = Saved(t, *([x] if weight.node else []))
    elements, trained, wanted = x.elements, weight.node is not None, x.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads: list[Tensor | None] = [None, None]
        if trained:
            grads[1] = empty(t, weight.elements, weight.dtype)
        if wanted:
            grads[0] = empty(t, elements, grad.dtype)
        del kept
        return grads

    return attach(t, out, run, x, weight)


def sum_groups(t: Tape, x: Tensor, groups: float) -> Tensor:
    """Sum over each token's experts: autocast sums in fp32, and the gradient is cast back."""
    whole, source = x.elements, x.dtype
    dtype = "float32" if t.autocast else source
    out = empty(t, _times(whole, 1 / groups), dtype)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        if grad.dtype != source:
            return (empty(t, whole, source),)
        return (Tensor(grad.storage, whole, grad.dtype),)

    return attach(t, out, run, x)


def repeat_view(t: Tape, x: Tensor, times: float) -> Tensor:
    """expand: no copy; the gradient is summed."""
    small = x.elements
    out = Tensor(x.storage, _times(small, times), x.dtype)
    return attach(t, out, lambda grad: (empty(t, small, grad.dtype),), x)


def convolution(t: Tape, x: Tensor) -> Tensor:
    """A short causal depthwise convolution: saves its input."""
    out = like(t, x)
    held = Saved(t, x)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        del kept
        return (back,)

    return attach(t, out, run, x)


def chunked_delta_rule(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, heads: int, chunk: int
) -> Tensor:
    """torch_chunk_gated_delta_rule in fp32, as one step of the graph.

    What its operations save, per token: q and k in fp32 after the cast, after norm and scaling,
    and decayed (three each), k weighted by beta and the solve for k, v in fp32, the solve for v and
    the corrections of each chunk (three), five matrices of heads x chunk, and two recurrent states
    a chunk (heads x key x value / chunk each).
    """
    source = q.dtype
    key, value = q.elements[1], v.elements[1]
    state = key * value / heads / chunk
    saved = widths(8 * key + 3 * value + 5 * heads * chunk + 2 * state)
    out = empty(t, v.elements, source)
    inside = empty(t, saved, "float32")
    held = Saved(t, inside)
    shapes = [(one.elements, one.dtype) for one in (q, k, v, beta, decay)]

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        work = empty(t, widths(4 * key + 3 * value + 2 * heads * chunk + state), "float32")
        grads = [empty(t, elements, dtype) for elements, dtype in shapes]
        del work, kept
        return grads

    return attach(t, out, run, q, k, v, beta, decay)
