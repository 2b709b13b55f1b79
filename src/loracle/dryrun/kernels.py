"""CUDA kernels whose memory behaviour a `meta` tensor does not show.

Each stand-in allocates what the CUDA kernel allocates: the dropout's bool mask, the scratch of
sorts and reductions, the unpacked copy of a 4-bit weight. Sources are torch's ATen/native
(cuda/Dropout.cu, cuda/Embedding.cu, cuda/SoftMax.cu) and bitsandbytes' backends/cuda/ops.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loracle.dryrun.recorder import Recorder
from loracle.errors import EngineError

aten = torch.ops.aten
# scratch of cub's reductions and selections on a card of a hundred multiprocessors: a few KiB
REDUCE_SCRATCH = 21_503
SELECT_SCRATCH = 1_279


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
        rows = a.reshape(-1, a.shape[-1])
        out = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
        return out.view(*a.shape[:-1], out.shape[-1])


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


def safe_softmax(
    recorder: Recorder, func: Any, x: torch.Tensor, dim: int, dtype: Any = None
) -> torch.Tensor:
    """Softmax, and two masks that find the rows with nothing to attend to."""
    out = torch.empty_like(x, dtype=dtype)
    recorder.watch(out, "activation", "_safe_softmax")
    recorder.temporary(x.numel(), x.numel() // max(1, x.shape[dim]), op="_safe_softmax")
    return out


def reduce(recorder: Recorder, func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A sum or a mean; integers are widened to int64 first, long ones are summed in stages."""
    out = func(x, *args, **kwargs)
    recorder.watch(out, "activation", func._overloadpacket.__name__)
    if not x.is_floating_point() and x.dtype != torch.int64:
        recorder.temporary(x.numel() * 8, op="sum")
    elif x.numel() > out.numel() > 0:
        dims = args[0] if args and isinstance(args[0], list | tuple) else range(x.dim())
        inner = any(d % x.dim() == x.dim() - 1 for d in dims)
        recorder.temporary(staging_bytes(x.numel(), out.numel(), inner=inner), op="sum")
    return out


def staging_bytes(num_inputs: int, num_outputs: int, *, inner: bool, num_sms: int = 132) -> int:
    """Global memory of a reduction that several blocks share (setReduceConfig, cuda/Reduce.cuh).

    `inner` says whether the fastest dimension is reduced. Inputs of 16 or 32 bits, summed in fp32.
    """
    per_output = num_inputs // num_outputs
    vector = 1
    if not inner:
        vector = next(v for v in (4, 2, 1) if num_outputs % v == 0)
    dim0, dim1 = (per_output, num_outputs) if inner else (num_outputs // vector, per_output)
    threads = 512 // vector
    width = min(_last_pow2(dim0), 32, threads)
    height = min(_last_pow2(dim1), threads // width)
    width = min(_last_pow2(dim0), threads // height)
    step_output = 1 if inner else width
    values = _div_up(per_output, width if inner else 1)
    if values < min(height * 16, 256):
        return 0
    values = _div_up(values, height)
    grid = _div_up(num_outputs // vector, step_output)
    target = num_sms * (2048 // (width * height))
    if values < 256 or grid > target:
        return 0
    blocks = max(min(_div_up(target, grid), _div_up(values, 16)), _div_up(values, 256))
    if blocks <= 1:
        return 0
    return 4 * num_outputs * blocks * (1 if inner else width * vector)


def _last_pow2(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def _div_up(a: int, b: int) -> int:
    return -(-a // b)


def index(recorder: Recorder, func: Any, x: torch.Tensor, indices: Any) -> torch.Tensor:
    """x[mask] for a mask that keeps everything: nonzero, then a gather by int64 positions."""
    first = indices[0]
    if len(indices) != 1 or first is None or first.dtype != torch.bool:
        return func(x, indices)  # type: ignore[no-any-return]
    if recorder.uniform.get(first) is not True:
        raise EngineError("dryrun.data_dependent", op="boolean index")
    rows = first.numel()
    with _nonzero(recorder, first):
        out = torch.empty(rows, *x.shape[first.dim() :], dtype=x.dtype, device=x.device)
        recorder.watch(out, "activation", "index")
    return out


@contextmanager
def _nonzero(recorder: Recorder, mask: torch.Tensor) -> Iterator[None]:
    """The positions of a mask of ones, as int64, alive while they are used."""
    count = recorder.born(4, "workspace", "nonzero")
    recorder.temporary(REDUCE_SCRATCH, op="nonzero")
    positions = recorder.born(mask.numel() * mask.dim() * 8, "workspace", "nonzero")
    recorder.temporary(SELECT_SCRATCH, op="nonzero")
    recorder.died(count)
    yield
    recorder.died(positions)


def masked_scatter(
    recorder: Recorder, func: Any, x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """A copy of x, and the mask's running count in int64."""
    out = torch.empty_like(x)
    recorder.watch(out, "activation", "masked_scatter")
    recorder.temporary(mask.numel() * 8, SELECT_SCRATCH, op="masked_scatter")
    return out


def grouped_mm(
    recorder: Recorder, func: Any, a: torch.Tensor, b: torch.Tensor, offs: Any = None,
    bias: Any = None, out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rows of `a` times the expert that they belong to, in any float dtype.

    The meta kernel takes bf16 only. CUDA's multiplies group by group where the dtype is another
    one, straight into the rows of the result (cuda/GroupedBlas.cpp); rows are padded to 16 bytes.
    """
    if a.dtype is torch.bfloat16 and b.dtype is torch.bfloat16:
        return func(a, b, offs, bias, out_dtype)  # type: ignore[no-any-return]
    if a.dtype != b.dtype:
        raise EngineError("dryrun.cannot_run", op="_grouped_mm", reason=f"{a.dtype}, {b.dtype}")
    shape = (*a.shape[:-1], b.shape[-1])
    if a.dim() == b.dim() == 2:
        shape = (offs.numel(), *shape)
    elif a.dim() == 3 and b.dim() == 2:
        shape = shape[1:]
    aligned = 16 // a.element_size()
    padded = (*shape[:-1], _div_up(shape[-1], aligned) * aligned)
    out = torch.empty(padded, dtype=out_dtype or a.dtype, device=a.device)
    return out[..., : shape[-1]]


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
        aten.masked_scatter.default: masked_scatter,
        aten.bincount.default: bincount,
        aten._grouped_mm.default: grouped_mm,
        aten._safe_softmax.default: safe_softmax,
        aten.sum.default: reduce,
        aten.sum.dim_IntList: reduce,
        aten.mean.dim: reduce,
        aten._softmax_backward_data.default: softmax_backward,
        aten.embedding_dense_backward.default: embedding_dense_backward,
    }
    if hasattr(torch.ops, "bitsandbytes") and hasattr(torch.ops.bitsandbytes, "gemm_4bit"):
        known[torch.ops.bitsandbytes.gemm_4bit.default] = gemm_4bit
    return known
