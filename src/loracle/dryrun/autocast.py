"""CUDA's autocast rules for `meta` tensors, on a torch that has no CUDA.

Autocast is a dispatch key of the backend, and `meta` has none, so the casts are made one level
higher: a function mode sees each call from Python, looks its name up in the lists of
ATen/autocast_mode.h and casts the arguments as `cached_cast` does, cache of weight casts included.
The state (on, off, dtype, nesting) is torch's own for "cuda", so `torch.autocast`, PEFT's
`torch.is_autocast_enabled()` and non-reentrant checkpointing behave as on a card.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

_LOWER = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "vecdot",
    "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "multi_dot",
    "scaled_dot_product_attention",
})  # fmt: skip
_FP32 = frozenset({
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm",
    "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "cdist", "renorm", "logsumexp",
    "cross_entropy",  # log_softmax inside it takes fp32, and nll_loss after it
})  # fmt: skip
_FP32_DTYPE = frozenset({
    "prod", "softmax", "log_softmax", "cumprod", "cumsum", "vector_norm", "matrix_norm", "sum",
    "norm",
})  # fmt: skip
_PROMOTE = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
})  # fmt: skip
_DUNDER = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow", "__rpow__": "pow"}
_WIDTH = {torch.float16: 1, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "meta"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


class CudaAutocast(TorchFunctionMode):
    """Casts arguments as CUDA's autocast would, and swaps in `replacements` by function name."""

    def __init__(self, replacements: dict[str, Any]) -> None:
        super().__init__()
        self.replacements = replacements
        self._cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Drop the cached weight casts (torch.clear_autocast_cache)."""
        self._cast_weights.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        name = _DUNDER.get(name, name)
        held: list[Any] = []
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = self._cast_all(name, args, kwargs)
            held = list(args)
            args = ()
        out = self._call(name, func, held or args, kwargs)
        for at in range(len(held)):  # casts go in the order of the arguments, as temporaries do
            held[at] = None
        return out

    def _call(self, name: str, func: Any, args: Any, kwargs: dict) -> Any:
        replacement = self.replacements.get(name)
        if replacement is not None:
            out = replacement(func, tuple(args), kwargs)
            if out is not NotImplemented:
                return out
        return func(*args, **kwargs)

    def _cast_all(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if name in _LOWER:
            return self._map(args, kwargs, torch.get_autocast_dtype("cuda"))
        if name in _FP32:
            if name == "pow" and not any(_eligible(a) for a in args):
                return args, kwargs
            return self._map(args, kwargs, torch.float32)
        if name in _FP32_DTYPE:
            first = args[0] if args else kwargs.get("input")
            if _eligible(first) and kwargs.get("dtype") is None and first.dtype != torch.float32:
                return args, {**kwargs, "dtype": torch.float32}
            return args, kwargs
        if name in _PROMOTE:
            tensors = [a for a in args if _eligible(a)]
            if tensors:
                widest = max((t.dtype for t in tensors), key=lambda d: _WIDTH.get(d, 0))
                return self._map(args, kwargs, widest)
        return args, kwargs

    def _map(self, args: tuple, kwargs: dict, dtype: torch.dtype) -> tuple[tuple, dict]:
        """Cast all arguments, the last one first: so does the C++ call that does it on a card."""
        named = {name: self._cast(value, dtype) for name, value in reversed(kwargs.items())}
        placed = [self._cast(value, dtype) for value in reversed(args)]
        return tuple(reversed(placed)), {name: named[name] for name in kwargs}

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(self._cast(v, dtype) for v in value)
        if not _eligible(value) or value.dtype is dtype:
            return value
        cacheable = (
            dtype is torch.get_autocast_dtype("cuda")
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not cacheable:
            return value.to(dtype)
        known = self._cast_weights.get(id(value))
        if known is None:
            known = self._cast_weights[id(value)] = (value, value.to(dtype))
        return known[1]


@contextmanager
def cuda_autocast_state(mode: CudaAutocast) -> Iterator[None]:
    """Let `torch.autocast` work for "cuda" and for "meta" (as "cuda") on a torch without CUDA."""
    real_init = torch.autocast.__init__
    real_enabled = torch.is_autocast_enabled
    real_dtype = torch.get_autocast_dtype
    real_clear = torch.clear_autocast_cache
    real_missing = torch.cuda.amp.common.amp_definitely_not_available
    real_bf16 = torch.cuda.is_bf16_supported
    real_infer = torch.utils.checkpoint._infer_device_type

    def device(name: Any) -> Any:
        return "cuda" if name == "meta" else name

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_init(self, device(device_type), *args, **kwargs)

    def clear() -> None:
        mode.clear()
        real_clear()

    def enabled(*args: Any) -> bool:
        return bool(real_enabled(*(device(a) for a in args)))

    def maybe(
        device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> Any:
        if torch.is_autocast_enabled(device_type) or enabled:
            return torch.autocast(
                device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled
            )
        return nullcontext()

    holders = [
        (module, module.maybe_autocast)
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and "maybe_autocast" in vars(module)
    ]
    torch.autocast.__init__ = init  # type: ignore[method-assign]
    torch.is_autocast_enabled = enabled  # type: ignore[assignment]
    torch.get_autocast_dtype = lambda name: real_dtype(device(name))  # type: ignore[assignment]
    torch.clear_autocast_cache = clear  # type: ignore[assignment]
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *a, **k: True  # type: ignore[assignment]
    torch.utils.checkpoint._infer_device_type = lambda *args: "cuda"
    for module, _ in holders:
        module.maybe_autocast = maybe
    try:
        yield
    finally:
        torch.autocast.__init__ = real_init  # type: ignore[method-assign]
        torch.is_autocast_enabled = real_enabled
        torch.get_autocast_dtype = real_dtype
        torch.clear_autocast_cache = real_clear
        torch.cuda.amp.common.amp_definitely_not_available = real_missing
        torch.cuda.is_bf16_supported = real_bf16
        torch.utils.checkpoint._infer_device_type = real_infer
        for module, original in holders:
            module.maybe_autocast = original
