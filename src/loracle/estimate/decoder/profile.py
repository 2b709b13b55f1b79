"""Parts of the model run once on the tape, folded into peaks that any batch can be put into.

A profile holds what a part leaves behind and the points of its passes that can be a peak: a point
is dropped where another is at least as large in every size component.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loracle.estimate.decoder.tape import (
    KINDS,
    Event,
    Size,
    Tape,
    Tensor,
    backward,
    checkpoint,
    empty,
    leaf,
    like,
)

ZERO: Size = (0.0, 0.0, 0.0)
Point = tuple[Size, ...]  # one size per kind, in the order of KINDS


@dataclass(frozen=True, slots=True)
class Profile:
    """One part of the model.

    `dtype` is that of its output. `kept` is what the forward pass leaves for the backward pass
    (its input included, its output not). `forward` are candidate peaks counted from an empty
    start, `backward` counted with `kept`. `gradients` is what the backward pass leaves; `casts`
    are autocast's copies of trained weights, which last until the forward pass of the whole model
    ends.
    """

    dtype: str
    kept: Size
    casts: Size
    gradients: Size
    forward: tuple[Point, ...]
    backward: tuple[Point, ...]
    lives: "Lives"


@dataclass(frozen=True, slots=True)
class Lives:
    """Births and deaths in order: (storage, bytes) for a birth, (~storage, bytes) for a death."""

    forward: tuple[tuple[int, Size], ...]
    uncast: tuple[tuple[int, Size], ...]  # the end of autocast
    backward: tuple[tuple[int, Size], ...]


def value(size: Size, tokens: float, positions: float) -> float:
    """Bytes of a size for so many tokens in sequences of so many positions."""
    return size[0] + tokens * (size[1] + positions * size[2])


def total(point: Point) -> Size:
    """A point summed over kinds."""
    return (
        sum(one[0] for one in point),
        sum(one[1] for one in point),
        sum(one[2] for one in point),
    )


def profile_part(
    tape: Tape,
    width: float,
    dtype: str,
    run: Callable[[Tensor], Tensor],
    *,
    checkpointed: bool = False,
    input_gradient: bool = True,
    after_forward: Callable[[], None] | None = None,
) -> Profile:
    """Run a part forward and backward; `width` and `dtype` are those of its input.

    `input_gradient` is False where nothing before the part is trained. `after_forward` runs between
    the passes (a trainer letting go of the outputs).
    """
    elements = (0.0, width, 0.0)
    box = [leaf(tape, elements, dtype) if input_gradient else empty(tape, elements, dtype)]
    out = checkpoint(tape, run, box.pop()) if checkpointed else run(box.pop())
    root = Tensor(None, out.elements, out.dtype, out.node)
    del out
    if after_forward is not None:
        after_forward()
    turn = tape.mark()
    tape.cast_cache.clear()
    cleared = tape.mark()
    if root.node is not None:
        box.append(like(tape, root))
        arrived = backward(tape, root, box.pop())
        del arrived
    forward, held = _walk(tape.events[:turn], (ZERO,) * len(KINDS))
    _, kept = _walk(tape.events[turn:cleared], held)
    points, left = _walk(tape.events[cleared:], kept)
    cast = KINDS.index("cast")
    casts = tuple(a - b for a, b in zip(held[cast], kept[cast], strict=True))
    return Profile(
        dtype=root.dtype,
        kept=total(kept),
        casts=(casts[0], casts[1], casts[2]),
        gradients=left[KINDS.index("gradient")],
        forward=forward,
        backward=points,
        lives=Lives(
            _lives(tape.events[:turn]),
            _lives(tape.events[turn:cleared]),
            _lives(tape.events[cleared:]),
        ),
    )


def _lives(events: list[Event]) -> tuple[tuple[int, Size], ...]:
    return tuple((number if sign > 0 else ~number, size) for sign, _, size, number in events)


def _walk(
    events: list[Event], start: tuple[Size, ...]
) -> tuple[tuple[Point, ...], tuple[Size, ...]]:
    """(candidate peaks, sizes at the end) of a stretch of the log."""
    now = [list(one) for one in start]
    index = {kind: at for at, kind in enumerate(KINDS)}
    a, b, c = total(start)
    peaks: list[tuple[Size, Point]] = []
    rising = True
    for sign, kind, size, _ in events:
        if sign < 0 and rising:
            _offer(peaks, (a, b, c), now)
        rising = sign > 0
        row = now[index[kind]]
        row[0] += sign * size[0]
        row[1] += sign * size[1]
        row[2] += sign * size[2]
        a, b, c = a + sign * size[0], b + sign * size[1], c + sign * size[2]
    _offer(peaks, (a, b, c), now)
    end = tuple((row[0], row[1], row[2]) for row in now)
    return tuple(point for _, point in peaks), end


def _offer(peaks: list[tuple[Size, Point]], size: Size, now: list[list[float]]) -> None:
    """Keep a point unless another dominates it; drop those that it dominates."""
    for other, _ in peaks:
        if other[0] >= size[0] and other[1] >= size[1] and other[2] >= size[2]:
            return
    peaks[:] = [
        (other, point)
        for other, point in peaks
        if not (size[0] >= other[0] and size[1] >= other[1] and size[2] >= other[2])
    ]
    peaks.append((size, tuple((row[0], row[1], row[2]) for row in now)))
