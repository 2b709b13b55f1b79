"""CUDA kernels whose memory behaviour a `meta` tensor does not show.

Each stand-in allocates what the CUDA kernel allocates: the dropout's bool mask, the scratch of
sorts and reductions, the unpacked copy of a 4-bit weight. Sources are torch's ATen/native
(cuda/Dropout.cu, cuda/Embedding.cu, cuda/SoftMax.cu) and bitsandbytes' backends/cuda/ops.py.
"""

from typing import Any

import torch
from torch.nn import functional

from loracle.dryrun.recorder import Recorder
from loracle.errors import EngineError

aten = torch.ops.aten


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Bytes of cuBLAS' workspace by torch's defaults (cuda/CublasHandlePool.cpp)."""
    return 32 << 20 if capability[0] in (9, 10) else (8 << 20) + (128 << 10)


def dropout(func: Any, args: tuple, kwargs: dict) -> Any:
    """F.dropout as CUDA runs it: one fused kernel that keeps a bool mask."""

    def call(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0.0:
            return x
        return torch.native_dropout(x, p, True)[0]

    return call(*args, **kwargs)


def native_dropout(recorder: Recorder, func: Any, x: torch.Tensor, p: float, train: Any) -> Any:
    """Output and bool mask; the mask is allocated first."""
    mask = torch.empty_like(x, dtype=torch.bool)
    recorder.watch(mask, "activation", "native_dropout")
    return torch.empty_like(x), mask


def native_dropout_backward(
    recorder: Recorder, func: Any, grad: torch.Tensor, mask: torch.Tensor, scale: float
) -> Any:
    """grad x mask x scale in one kernel."""
    return torch.empty_like(grad)


def gemm_4bit(
    recorder: Recorder,
    func: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    shape: Any,
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """bitsandbytes' path for long inputs: dequantise the whole weight, then F.linear.

    Left out: its fused kernel for short ones, which needs no unpacked weight in the forward pass.
    The backward pass unpacks the weight either way.
    """
    with recorder:
        if absmax_8bit is not None:
            nested = torch.empty_like(absmax_8bit, dtype=torch.float32)
            scales = nested + absmax_offset  # noqa: F841  both stay until the product is done
        weight = torch.empty(tuple(shape), dtype=a.dtype, device=a.device)
        return functional.linear(a, weight, bias)


def embedding_dense_backward(
    recorder: Recorder, func: Any, grad: torch.Tensor, indices: torch.Tensor, num_weights: int,
    padding_idx: int, scale_grad_by_freq: bool,
) -> torch.Tensor:  # fmt: skip
    """Sort of the indices, partial sums by segment in fp32, then the dense gradient."""
    count = indices.numel()
    width = grad.shape[-1]
    out = torch.empty(num_weights, width, dtype=grad.dtype, device=grad.device)
    recorder.watch(out, "activation", "embedding_dense_backward")
    if count > 3072:
        index = count * 8
        recorder.temporary(index, index, index * 2, op="embedding_dense_backward")
        recorder.temporary(
            index, index, index, count * (width + 31) // 32 * 32 * 4, op="embedding_dense_backward"
        )
    return out


def softmax_backward(
    recorder: Recorder, func: Any, grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: Any
) -> torch.Tensor:
    """grad_input, and a copy for grad x output (native/cuda/SoftMax.cu)."""
    out = torch.empty_like(output, dtype=dtype)
    recorder.watch(out, "activation", "_softmax_backward_data")
    recorder.temporary(grad.numel() * grad.element_size(), op="_softmax_backward_data")
    return out


def index(recorder: Recorder, func: Any, x: torch.Tensor, indices: Any) -> torch.Tensor:
    """x[mask] for a mask that keeps everything: nonzero, then a gather by int64 positions."""
    first = indices[0]
    if len(indices) != 1 or first is None or first.dtype != torch.bool:
        return func(x, indices)  # type: ignore[no-any-return]
    if recorder.uniform.get(first) is not True:
        raise EngineError("dryrun.data_dependent", op="boolean index")
    rows = first.numel()
    out = torch.empty(rows, *x.shape[first.dim() :], dtype=x.dtype, device=x.device)
    recorder.temporary(rows * first.dim() * 8, op="nonzero")
    recorder.watch(out, "activation", "index")
    return out


def bincount(
    recorder: Recorder, func: Any, x: torch.Tensor, weights: Any = None, minlength: int = 0
) -> torch.Tensor:
    """As many bins as asked for; without a minimum their number depends on the values."""
    if not minlength:
        raise EngineError("dryrun.data_dependent", op="bincount")
    dtype = torch.int64 if weights is None else weights.dtype
    return torch.empty(minlength, dtype=dtype, device=x.device)


def table() -> dict[Any, Any]:
    """Stand-ins by operator."""
    known = {
        aten.native_dropout.default: native_dropout,
        aten.native_dropout_backward.default: native_dropout_backward,
        aten.index.Tensor: index,
        aten.bincount.default: bincount,
        aten._softmax_backward_data.default: softmax_backward,
        aten.embedding_dense_backward.default: embedding_dense_backward,
    }
    if hasattr(torch.ops, "bitsandbytes") and hasattr(torch.ops.bitsandbytes, "gemm_4bit"):
        known[torch.ops.bitsandbytes.gemm_4bit.default] = gemm_4bit
    return known
