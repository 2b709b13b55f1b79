"""A toy autograd that knows only sizes: who is born, who is saved, who dies, and in which order.

PyTorch frees a tensor when the last reference goes, and the graph holds what the backward pass
will need. This module does the same with tensors that have no values: each operation below
allocates what its CUDA kernel allocates, saves what its autograd formula saves
(tools/autograd/derivatives.yaml) and follows CUDA's autocast lists (ATen/autocast_mode.h). A
layer written with these operations in the order of transformers' code (`decoder/layers.py`)
therefore yields its saved activations and its peak from first principles, in microseconds.

A size is a triple: bytes that do not depend on the batch, bytes per token, and bytes per token
and position (score matrices). So a layer is run once per model and setting, and its peaks are
then evaluated for any sequence length and batch.

CPython's reference counting is the clock here: a storage logs its death in `__del__`.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

Size = tuple[float, float, float]
Event = tuple[int, str, Size, int]  # birth (1) or death (-1), kind, bytes, number of the storage

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2, "bool": 1, "uint8": 1, "int64": 8}
KINDS = ("activation", "dequant", "gradient", "cast", "logits")

Backward = Callable[["Tensor"], Sequence["Tensor | None"]]


class Tape:
    """The log of births and deaths, and the state that operations consult.

    `autocast` is the 16-bit dtype of autocast, or None. `frame` is the checkpoint that is being
    filled or recomputed, None outside of one. `records` is False under torch.no_grad().
    """

    __slots__ = ("autocast", "cast_cache", "count", "events", "frame", "ordinal", "records")

    def __init__(self, autocast: str | None, *, records: bool = True) -> None:
        self.autocast, self.records = autocast, records
        self.events: list[Event] = []
        self.count = 0
        self.frame: Frame | None = None
        self.cast_cache: dict[int, Tensor] = {}
        self.ordinal = 0

    def mark(self) -> int:
        """A place in the log."""
        return len(self.events)

    def temporary(self, kind: str, size: Size) -> None:
        """Scratch of a kernel: born and gone at once."""
        self.events.append((1, kind, size, self.count))
        self.events.append((-1, kind, size, self.count))
        self.count += 1


class Storage:
    """Bytes on the card; logs its birth and its death."""

    __slots__ = ("kind", "number", "size", "tape")

    def __init__(self, tape: Tape, size: Size, kind: str = "activation") -> None:
        self.tape, self.size, self.kind = tape, size, kind
        self.number = tape.count
        tape.count += 1
        tape.events.append((1, kind, size, self.number))

    def __del__(self) -> None:
        self.tape.events.append((-1, self.kind, self.size, self.number))

    def becomes(self, kind: str) -> None:
        """Count it under another kind from now on: a death and a birth with nothing between."""
        self.tape.events.append((-1, self.kind, self.size, self.number))
        self.kind = kind
        self.tape.events.append((1, kind, self.size, self.number))


class Node:
    """One step of the backward graph: gets the gradient of its output, gives those of its inputs.

    `dtype` is that of the output: the engine casts arriving gradients to it.
    """

    __slots__ = ("dtype", "elements", "inputs", "ordinal", "run")

    def __init__(
        self, tape: Tape, run: Backward | None, inputs: Sequence["Node | None"], dtype: str,
        elements: Size,
    ) -> None:  # fmt: skip
        tape.ordinal += 1
        self.ordinal = tape.ordinal
        self.run, self.inputs, self.dtype, self.elements = run, inputs, dtype, elements


class Tensor:
    """A view of a storage: element counts, dtype and the node that made it (None: no gradient)."""

    __slots__ = ("dtype", "elements", "node", "storage")

    def __init__(
        self, storage: Storage | None, elements: Size, dtype: str, node: Node | None = None
    ) -> None:
        self.storage, self.elements, self.dtype, self.node = storage, elements, dtype, node


class Weight(Tensor):
    """A parameter: resident, so it has no storage here; `grad` is set where it is trained."""

    __slots__ = ("grad",)

    def __init__(self, tape: Tape, count: float, dtype: str, trained: bool) -> None:
        super().__init__(None, (count, 0, 0), dtype)
        self.grad: Storage | None = None
        if trained:
            self.node = Node(tape, None, (), dtype, self.elements)
            self.node.run = self._accumulate

    def _accumulate(self, grad: Tensor) -> Sequence[Tensor | None]:
        """AccumulateGrad: steals the incoming gradient."""
        assert grad.storage is not None
        grad.storage.becomes("gradient")
        self.grad = grad.storage
        return ()


def widths(per_token: float) -> Size:
    """Elements that grow with the tokens."""
    return (0.0, per_token, 0.0)


def nbytes(elements: Size, dtype: str) -> Size:
    """Bytes of so many elements."""
    item = ITEM[dtype]
    return (elements[0] * item, elements[1] * item, elements[2] * item)


def empty(tape: Tape, elements: Size, dtype: str, kind: str = "activation") -> Tensor:
    """A new tensor without a gradient."""
    return Tensor(Storage(tape, nbytes(elements, dtype), kind), elements, dtype)


def like(tape: Tape, x: Tensor, dtype: str | None = None) -> Tensor:
    """A new tensor of the same elements."""
    return empty(tape, x.elements, dtype or x.dtype)


def attach(tape: Tape, out: Tensor, run: Backward, *inputs: Tensor) -> Tensor:
    """Make `out` the output of a node, if any input wants a gradient and the tape records."""
    nodes = [one.node for one in inputs]
    if tape.records and any(nodes):
        out.node = Node(tape, run, nodes, out.dtype, out.elements)
    return out


def view(tape: Tape, x: Tensor) -> Tensor:
    """The same storage and gradient (reshape, transpose)."""
    return Tensor(x.storage, x.elements, x.dtype, x.node)


# --- saved tensors and checkpoints ---------------------------------------------------------------


class StopRecompute(Exception):
    """Everything that the backward pass needs is there again."""


class Frame:
    """One checkpointed region: keeps its inputs, forgets what it saves, and runs again on demand.

    The law of torch.utils.checkpoint without reentrance: the first saved tensor that the backward
    pass asks for starts the recomputation, which stops at the last one that was saved.
    """

    __slots__ = ("again", "count", "store", "tape")

    def __init__(self, tape: Tape, again: Callable[[], object]) -> None:
        self.tape, self.again = tape, again
        self.count = 0
        self.store: list[Storage | None] | None = None

    def recompute(self) -> None:
        """Run the region again, collecting what it saves."""
        outer, cache = self.tape.frame, self.tape.cast_cache
        self.store = []
        self.tape.frame, self.tape.cast_cache = self, {}
        try:
            self.again()
        except StopRecompute:
            pass
        finally:
            self.tape.frame, self.tape.cast_cache = outer, cache


class Saved:
    """What a node saved: the storages themselves, or places in a checkpoint's frame.

    torch saves inputs before an operation runs and outputs after it, so the operations below make
    this before or after their result: it decides where a recomputation stops.
    """

    __slots__ = ("frame", "held")

    def __init__(self, tape: Tape, *tensors: Tensor) -> None:
        frame = tape.frame
        self.frame = frame if frame is not None and frame.store is None else None
        self.held: list[object] = []
        for one in tensors:
            if one.storage is None:
                continue
            if frame is None:
                self.held.append(one.storage)
            elif frame.store is None:
                self.held.append(frame.count)
                frame.count += 1
            else:
                frame.store.append(one.storage)
                if len(frame.store) == frame.count:
                    raise StopRecompute

    def take(self) -> list[object]:
        """The storages; a checkpoint recomputes them now and lets go of them."""
        if self.frame is None:
            held, self.held = self.held, []
            return held
        if not self.held:
            return []
        if self.frame.store is None:
            self.frame.recompute()
        store = self.frame.store
        assert store is not None
        taken: list[object] = []
        for place in self.held:
            assert isinstance(place, int)
            taken.append(store[place])
            store[place] = None
        return taken


def checkpoint(tape: Tape, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`run(x)` whose saved tensors are forgotten; `x` is kept until the region is done."""
    fresh = Tensor(x.storage, x.elements, x.dtype, x.node)
    frame = Frame(tape, lambda: run(Tensor(fresh.storage, fresh.elements, fresh.dtype, fresh.node)))
    outer, tape.frame = tape.frame, frame
    try:
        return run(x)
    finally:
        tape.frame = outer


# --- the engine ----------------------------------------------------------------------------------


def backward(tape: Tape, root: Tensor, grad: Tensor) -> Tensor | None:
    """Run the graph behind `root`; returns the gradient that reaches the `leaf` node, if any.

    Nodes run from the youngest to the oldest, as torch's engine orders them; gradients that meet
    are summed into a new tensor, and cast where the dtype differs.
    """
    assert root.node is not None
    buffers: dict[Node, Tensor] = {root.node: grad}
    queue: list[tuple[int, Node]] = [(-root.node.ordinal, root.node)]
    del grad
    arrived: Tensor | None = None
    while queue:
        _, node = heappop(queue)
        incoming = buffers.pop(node)
        if node.run is None:
            arrived = incoming
            continue
        grads = list(node.run(incoming))
        node.run = None
        del incoming
        inputs = node.inputs
        for index, target in enumerate(inputs):
            if target is None:
                continue
            one, grads[index] = grads[index], None
            if one is None:
                continue
            if one.dtype != target.dtype:
                one = empty(tape, one.elements, target.dtype)
            held = buffers.get(target)
            if held is None:
                buffers[target] = one
                heappush(queue, (-target.ordinal, target))
            else:
                total = like(tape, held)
                buffers[target] = total
                del held, total
            del one
        del grads, node, inputs
    return arrived


def leaf(tape: Tape, elements: Size, dtype: str) -> Tensor:
    """The input of a region, whose gradient `backward` returns."""
    out = empty(tape, elements, dtype)
    out.node = Node(tape, None, (), dtype, elements)
    return out
