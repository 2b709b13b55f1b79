"""Watches every operation of a training step on `meta` tensors and logs the storages' lives.

A dispatch mode sits under autograd, so it sees what the CUDA backend would see: each operation
after casts and decompositions, in the forward pass, in a checkpoint's recomputation and in the
backward pass. A storage is born with the first tensor that shows it and dies when Python and the
autograd graph have let go of it: at the same operation as on a card, since both count references.

Only `meta` tensors count as device memory; the few real CPU tensors (counters, scalars) do not.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from loracle.dryrun.values import Uniform
from loracle.errors import EngineError

Kernel = Callable[..., Any]


class Recorder(TorchDispatchMode):
    """Logs births and deaths of storages, and hands every operation to `on_op`.

    `events` holds n for the birth of storage n and ~n for its death; `sizes[n]` its bytes,
    `owners[n]` who asked for it. `kernels` maps an operator to a function that stands in for it
    where CUDA's memory behaviour differs from the meta kernel's: it gets the recorder, the
    operator and its arguments and returns the outputs.
    """

    def __init__(self, kernels: dict[Any, Kernel]) -> None:
        super().__init__()
        self.kernels = kernels
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.owners: list[tuple[str, str, str]] = []
        self.marks: list[tuple[int, str]] = []
        self.module = ""
        self.phase = "load"
        self.on_op: Callable[[Any, tuple, dict, Any, str], None] | None = None
        self.uniform = Uniform()
        self._seen: set[str] = set()
        self._live: dict[int, tuple[weakref.ref, list[int]]] = {}

    # --- the log -------------------------------------------------------------------------------

    def mark(self, phase: str) -> None:
        """Start a phase: what follows belongs to it."""
        self.phase = phase
        self.marks.append((len(self.events), phase))

    def born(self, size: int, kind: str, op: str = "") -> int:
        """Log the birth of a storage that no tensor shows; returns its number."""
        number = len(self.sizes)
        self.sizes.append(size)
        self.owners.append((self.module, kind, op))
        self.events.append(number)
        return number

    def died(self, number: int) -> None:
        """Log the death of a storage."""
        self.events.append(~number)

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
            self.died(box[0])
            self._live.pop(key, None)

        self._live[key] = (weakref.ref(storage, gone), box)
        return box[0]

    def adopt(self, tensor: torch.Tensor, number: int) -> None:
        """Tie a storage that was logged by hand to the tensor that holds it from now on."""
        storage = tensor.untyped_storage()
        key = id(storage)
        box = [number]

        def gone(_: object, key: int = key, box: list[int] = box) -> None:
            self.died(box[0])
            self._live.pop(key, None)

        self._live[key] = (weakref.ref(storage, gone), box)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a live tensor's storage."""
        storage = tensor.untyped_storage()
        known = self._live.get(id(storage))
        return known[1][0] if known is not None and known[0]() is storage else None

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        """Name the module that asks for memory."""
        before, self.module = self.module, module
        try:
            yield
        finally:
            self.module = before

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
        if self.on_op is not None:
            self.on_op(func, args, kwargs, out, self.phase)
        return out
