"""Watches every operation of a training step on `meta` tensors and logs the storages' lives.

A dispatch mode sits under autograd, so it sees what the CUDA backend would see: each operation
after casts and decompositions, in the forward pass, in a checkpoint's recomputation and in the
backward pass. A storage is born with the first tensor that shows it and dies when Python and the
autograd graph have let go of it: at the same operation as on a card, since both count references.

Only `meta` tensors count as device memory; the few real CPU tensors (counters, scalars) do not.

The log is cut into segments, each with a stage and a decoder layer, so that `layers` can place the
segments of a few layers as often as the model has them.
"""

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from loracle.domain.trace import Op
from loracle.dryrun.ops import describe
from loracle.dryrun.values import Uniform
from loracle.errors import EngineError

Kernel = Callable[..., Any]
aten = torch.ops.aten
_IN_PLACE = {aten.add.Tensor, aten.index_put.default}


@dataclass(slots=True)
class Segment:
    """Events of one decoder layer (or of none) in one stage."""

    stage: str
    layer: int | None
    phase: str
    events: list[int] = field(default_factory=list)
    ops: Counter[Op] = field(default_factory=Counter)


class Recorder(TorchDispatchMode):
    """Logs births and deaths of storages, and what each operation costs.

    An event is n for the birth of storage n and ~n for its death; `sizes[n]` are its bytes,
    `owners[n]` is who asked for it. `kernels` maps an operator to a function that stands in for it
    where CUDA's memory behaviour differs from the meta kernel's: it gets the recorder, the
    operator and its arguments and returns the outputs.
    """

    def __init__(self, layer_path: str = "") -> None:
        super().__init__()
        self.kernels: dict[Any, Kernel] = {}
        self.segments: list[Segment] = []
        self.sizes: list[int] = []
        self.owners: list[tuple[str, str, str]] = []
        self.module = ""
        self.uniform = Uniform()
        self.workspace_bytes = 0
        self.recomputing = False
        self.checkpointed = False
        self._layer_of = re.compile(re.escape(layer_path) + r"\.(\d+)(?:\.|$)")
        self._layer_path = layer_path
        self.in_place = False
        self._functional: tuple[Segment, int, int, tuple[int, ...]] | None = None
        self._seen: set[str] = set()
        self._live: dict[int, tuple[weakref.ref, list[int]]] = {}
        self.enter("load", None, "load")

    # --- the log -------------------------------------------------------------------------------

    @property
    def now(self) -> Segment:
        """The segment that is being written."""
        return self.segments[-1]

    def enter(self, stage: str, layer: int | None, phase: str | None = None) -> None:
        """Start a segment, unless it is the present one."""
        if self.segments:
            now = self.segments[-1]
            if (now.stage, now.layer) == (stage, layer):
                return
            phase = phase or now.phase
        self.segments.append(Segment(stage, layer, phase or "load"))

    def born(self, size: int, kind: str, op: str = "") -> int:
        """Log the birth of a storage that no tensor shows; returns its number."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.owners.append((self.module, kind, op))
        self.segments[-1].events.append(number)
        self._functional = None
        return number

    def died(self, number: int) -> None:
        """Log the death of a storage."""
        if self._functional is not None and self._was_in_place(number):
            return
        self.segments[-1].events.append(~number)

    def once(self, what: str) -> bool:
        """Whether this was asked before; True from the second time on."""
        if what in self._seen:
            return True
        self._seen.add(what)
        return False

    def temporary(self, *sizes: int, op: str = "workspace") -> None:
        """A kernel's scratch: born together, gone when the kernel returns."""
        numbers = [self.born(size, "workspace", op) for size in sizes if size > 0]
        for number in reversed(numbers):
            self.died(number)

    def watch(self, tensor: torch.Tensor, kind: str = "activation", op: str = "") -> int | None:
        """Log the birth of a tensor's storage, once; returns its number."""
        if tensor.device.type != "meta":
            return None
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._live.get(key)
        if known is not None and known[0]() is storage:
            return known[1][0]
        size = storage.nbytes()
        if size == 0:
            return None
        box = [self.born(size, kind, op)]

        def gone(_: object, key: int = key, box: list[int] = box) -> None:
            self._live.pop(key, None)
            self.died(box[0])

        self._live[key] = (weakref.ref(storage, gone), box)
        return box[0]

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a live tensor's storage."""
        storage = tensor.untyped_storage()
        known = self._live.get(id(storage))
        return known[1][0] if known is not None and known[0]() is storage else None

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        """Name the module that asks for memory while the model is loaded."""
        before, self.module = self.module, self.plain(module)
        found = self._layer_of.search(module)
        self.enter(self.now.stage, int(found[1]) if found else None)
        try:
            yield
        finally:
            self.module = before

    def plain(self, module: str) -> str:
        """A module's path with N for the layer's number."""
        path = self._layer_path
        return self._layer_of.sub(lambda m: f"{path}.N" + "." * m[0].endswith("."), module)

    def note(self, op: Op) -> None:
        """Count an operation that the watch does not see as one."""
        self.segments[-1].ops[op] += 1

    def op_phase(self) -> str:
        """forward, recompute (inside a backward pass), backward or evaluation."""
        if self.recomputing:
            return "recompute"
        phase = self.segments[-1].phase
        return "forward" if phase == "batch" else phase

    @contextmanager
    def checkpoint(self, *, again: bool) -> Iterator[None]:
        """What runs inside is checkpointed: for the first time, or again in the backward pass."""
        self.checkpointed, self.recomputing = True, again
        try:
            yield
        finally:
            self.checkpointed = self.recomputing = False

    # --- in-place operations that a dispatch mode keeps autograd from using -----------------------

    def _expect_in_place(self, func: Any, args: tuple, out: Any) -> None:
        """Remember an operation that autograd would have done in place without a dispatch mode.

        The engine adds up gradients with add_ and fills them with index_put_ where it holds the
        only reference; under a mode it may not, and makes a new tensor. If the old storage dies
        before anything else is born, the two were one on a card.
        """
        backward = self.segments[-1].phase == "backward" and not self.recomputing
        if func not in _IN_PLACE or not (backward or self.in_place):
            return
        if args[0]._is_view():  # a view keeps its base, so the engine's reference is not the last
            return
        number = self.number_of(out)
        if number is None or self.segments[-1].events[-1:] != [number]:
            return
        olds = tuple(
            old
            for old in (self.number_of(args[0]),)
            if old is not None and old != number and self.sizes[old] == self.sizes[number]
        )
        if olds:
            at = len(self.segments[-1].events) - 1
            self._functional = (self.segments[-1], at, number, olds)

    def _was_in_place(self, dead: int) -> bool:
        assert self._functional is not None
        segment, at, number, olds = self._functional
        if dead not in olds or segment is not self.segments[-1]:
            return False
        self._functional = None
        del segment.events[at]
        for _, box in self._live.values():
            if box[0] == number:
                box[0] = dead
                return True
        segment.events.append(~dead)  # the result itself is gone already
        return True

    # --- the watch -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = self.uniform.before(func, args)
        if known is not None:
            return known
        kernel = self.kernels.get(func)
        if kernel is not None:
            out = kernel(self, func, *args, **kwargs)
        else:
            try:
                out = func(*args, **kwargs)
            except NotImplementedError as error:
                raise EngineError("dryrun.unsupported_op", op=str(func)) from error
        name = func._overloadpacket.__name__
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self.watch(tensor, "activation", name)
        self.uniform.after(func, args, out)
        self._expect_in_place(func, args, out)
        op = describe(func, args, kwargs, out, self.op_phase())
        if op is not None:
            self.segments[-1].ops[op] += 1
            if op.kind == "gemm":
                self._cublas(op)
        return out

    def _cublas(self, op: Op) -> None:
        """cuBLAS takes its workspace through the allocator, once a thread; cublasLt another.

        The autograd engine runs the backward pass of a card in a thread of its own. A product with
        a bias goes through cublasLt, whose workspace is 1 MiB.
        """
        thread = "main" if op.phase in ("forward", "evaluation") else "autograd"
        if op.name == "addmm":
            if not self.once(f"cublasLt {thread}"):
                self.born(1 << 20, "workspace", "cublasLt")
        elif self.workspace_bytes and not self.once(f"cublas {thread}"):
            self.born(self.workspace_bytes, "workspace", "cublas")
