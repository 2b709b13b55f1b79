"""The few values that steer a model's control flow, followed through fake tensors.

A `meta` tensor has no values, yet transformers asks some: is the attention mask all ones? A mask
that is the same everywhere keeps that one value through casts, views, comparisons and reductions,
which is enough to take the branch that a run without padding takes. Anything else is refused.
"""

import weakref
from typing import Any

import torch

from loracle.errors import EngineError

aten = torch.ops.aten

_KEEPS = {
    aten._to_copy.default, aten.view.default, aten.slice.Tensor, aten.select.int,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.expand.default,
    aten.clone.default, aten.alias.default, aten.detach.default, aten.reshape.default,
    aten.index.Tensor, aten.transpose.int, aten.permute.default, aten.t.default,
    aten.all.default, aten.any.default, aten.all.dim, aten.any.dim, aten.max.default,
    aten.min.default, aten.amax.default, aten.amin.default, aten.lift_fresh.default,
    aten._unsafe_view.default,
}  # fmt: skip
_COMPARES = {
    aten.eq.Scalar: lambda value, other: value == other,
    aten.ne.Scalar: lambda value, other: value != other,
    aten.lt.Scalar: lambda value, other: value < other,
    aten.le.Scalar: lambda value, other: value <= other,
    aten.gt.Scalar: lambda value, other: value > other,
    aten.ge.Scalar: lambda value, other: value >= other,
}
_NOT = {aten.bitwise_not.default, aten.logical_not.default}
_ASKS = {aten._local_scalar_dense.default, aten.item.default}
# asked of a loss or a gradient norm only to report them or to stop on NaN
_NEVER = {aten.isnan.default, aten.isinf.default}


class Uniform:
    """Tensors whose elements all have one known value, by identity."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref, Any]] = {}

    def set(self, tensor: torch.Tensor, value: Any) -> None:
        """Declare that every element of `tensor` is `value`."""
        key = id(tensor)
        self._values[key] = (
            weakref.ref(tensor, lambda _, key=key: self._values.pop(key, None)),
            value,
        )

    def get(self, tensor: Any) -> Any:
        """The value of every element, or None."""
        known = self._values.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def before(self, func: Any, args: tuple) -> Any:
        """Answer a question about a value, or None where the operation is to run."""
        if func not in _ASKS:
            return None
        tensor = args[0]
        if tensor.device.type != "meta":
            return None
        value = self.get(tensor)
        if value is None:
            raise EngineError("dryrun.data_dependent", op=str(func))
        return value

    def after(self, func: Any, args: tuple, out: Any) -> None:
        """Carry a known value over to the output."""
        if not self._values and func not in _NEVER:
            if func in (aten.ones.default, aten.zeros.default):
                pass
            return
        if func in _NEVER:
            self.set(out, False)
            return
        if not args or not isinstance(args[0], torch.Tensor):
            return
        value = self.get(args[0])
        if value is None:
            return
        if func in _KEEPS and isinstance(out, torch.Tensor):
            self.set(out, bool(value) if out.dtype == torch.bool else value)
        elif func in _COMPARES and isinstance(args[1], int | float):
            self.set(out, _COMPARES[func](value, args[1]))
        elif func in _NOT:
            self.set(out, not value)
        elif func is aten.sum.default:
            self.set(out, value * args[0].numel())
