"""What an operation costs, in FLOPs and bytes, for the speed laws to price."""

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from loracle.domain.trace import Op

_GEMMS = {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm"}
_KINDS = {
    "embedding": "embedding", "embedding_dense_backward": "embedding", "index_select": "embedding",
    "dequantize_4bit": "dequant", "dequantize_blockwise": "dequant",
    "_to_copy": "copy", "clone": "copy", "copy_": "copy", "cat": "copy", "index": "copy",
    "index_put_": "copy", "masked_scatter": "copy", "constant_pad_nd": "copy",
    "native_layer_norm": "norm", "native_layer_norm_backward": "norm", "_fused_rms_norm": "norm",
    "_fused_rms_norm_backward": "norm",
    "_log_softmax": "loss", "_log_softmax_backward_data": "loss", "nll_loss_forward": "loss",
    "nll_loss_backward": "loss",
}  # fmt: skip
# gemm_4bit runs a product of its own, which is counted
_FREE = {
    "gemm_4bit",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "lift_fresh",
    "_local_scalar_dense",
}


@cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )


def describe(func: Any, args: tuple, kwargs: dict, out: Any, phase: str) -> Op | None:
    """The operation as a priced record, or None for views and other things that run no kernel."""
    if phase == "load" or _is_view(func):
        return None
    name = func._overloadpacket.__name__
    if name in _FREE or name == "_unsafe_view":
        return None
    outputs = [t for t in tree_iter(out) if isinstance(t, torch.Tensor) and t.device.type == "meta"]
    if not outputs:
        return None
    inputs = [
        t for t in tree_iter((args, kwargs))
        if isinstance(t, torch.Tensor) and t.device.type == "meta"
    ]  # fmt: skip
    if name == "detach" or (name in ("view", "reshape") and outputs):
        return None
    moved = float(sum(t.numel() * t.element_size() for t in (*inputs, *outputs)))
    largest = max((*inputs, *outputs), key=torch.Tensor.numel)
    dtype = str(outputs[0].dtype).removeprefix("torch.")
    if name in _GEMMS:
        return _gemm(name, inputs, outputs[0], moved, phase)
    kind = _KINDS.get(name, "elementwise")
    return Op(kind, name, float(largest.numel()), moved, dtype, tuple(largest.shape), phase)


def _gemm(
    name: str, inputs: list[torch.Tensor], out: torch.Tensor, moved: float, phase: str
) -> Op | None:
    left = inputs[-2] if name in ("addmm", "baddbmm") else inputs[0]
    k = int(left.shape[-1])
    n = int(out.shape[-1])
    m = out.numel() // n if n else 0
    dtype = str(left.dtype).removeprefix("torch.")
    if name == "_grouped_mm" and out.dim() == 3:  # weight gradient: the tokens are shared out
        k = max(1, k // int(out.shape[0]))
    return Op("gemm", name, 2.0 * m * n * k, moved, dtype, (m, n, k), phase)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: str, causal: bool, phase: str
) -> Op:
    """Fused attention: 4 products of scores and heads forward, 10 backward; half when causal."""
    batch, heads, rows, dim = (int(x) for x in q.shape)
    keys = int(k.shape[2])
    products = 5.0 if phase == "backward" else 2.0
    flops = products * 2.0 * batch * heads * rows * keys * dim * (0.5 if causal else 1.0)
    moved = sum(t.numel() * t.element_size() for t in (q, k, v, q)) * (
        2.0 if phase == "backward" else 1.0
    )
    dtype = str(q.dtype).removeprefix("torch.")
    return Op("attention", kernel, flops, moved, dtype, (batch, heads, rows, keys, dim), phase)
