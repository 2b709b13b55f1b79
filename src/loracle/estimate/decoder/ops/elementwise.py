"""Casts, sums, products by element, activations, slices: what each allocates and saves.

Sources: torch's tools/autograd/derivatives.yaml and ATen/autocast_mode.h (2.11 to 2.13).
"""

from collections.abc import Sequence

from loracle.estimate.decoder.tape import (
    Node,
    Saved,
    Size,
    Storage,
    Tape,
    Tensor,
    Weight,
    attach,
    empty,
    like,
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
    trained = weight.node is not None
    held = Saved(t, *([x] if trained else []))
    out = like(t, x, promote(x.dtype, weight.dtype))

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
    held = Saved(t, x, y)
    out = like(t, x, promote(x.dtype, y.dtype))
    first, second = x.node is not None, y.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        grads = (like(t, grad) if first else None, like(t, grad) if second else None)
        del kept
        return grads

    return attach(t, out, run, x, y)


def unary(t: Tape, x: Tensor, *, saves_output: bool = False) -> Tensor:
    """An activation with one kernel each way (silu, gelu, tanh, relu, sigmoid)."""
    if saves_output:
        out = like(t, x)
        held = Saved(t, out)
    else:
        held = Saved(t, x)
        out = like(t, x)

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


def square(t: Tape, x: Tensor) -> Tensor:
    """x squared: saves x; the gradient makes the power and its double on the way."""
    held = Saved(t, x)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        power = like(t, grad)
        doubled = like(t, grad)
        back = like(t, grad)
        del doubled, power, kept
        return (back,)

    return attach(t, like(t, x), run, x)


def gelu_new(t: Tape, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(c (x + 0.044715 x^3))) in single operations; autocast runs the power in fp32.

    The result is fp32 under autocast.
    """
    half = scale(t, x)
    cube = square(t, cast(t, x, "float32") if t.autocast else x)
    cube = scale(t, cube)
    inner = add(t, x, cube)
    del cube
    inner = scale(t, inner)
    inner = unary(t, inner, saves_output=True)
    inner = plus_constant(t, inner, inner.dtype)
    return multiply(t, half, inner)


def dora_scratch(t: Tape, count: float) -> None:
    """DoRA's weight norm: the whole weight dequantised, the update's product, and their sum."""
    weights = [Storage(t, (count * 2.0, 0.0, 0.0), "dequant") for _ in range(3)]
    weights.clear()


def scale_in_place(t: Tape, x: Tensor) -> Tensor:
    """x *= number: no new tensor; the gradient is a new one."""
    out = Tensor(x.storage, x.elements, x.dtype)
    return attach(t, out, lambda grad: (like(t, grad),), x)


def add_in_place(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x += y: no new tensor."""
    out = Tensor(x.storage, x.elements, x.dtype)
    return attach(t, out, lambda grad: (grad, grad), x, y)
