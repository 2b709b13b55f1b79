"""CUDA kernels whose memory behaviour a `meta` tensor does not show.

Each stand-in allocates what the CUDA kernel allocates: the dropout's bool mask, the fused
attention's output and log-sum-exp instead of a score matrix, the scratch of sorts and reductions.
Sources are torch's ATen/native (cuda/Dropout.cu, cuda/Embedding.cu, transformers/cuda/attention*.cu,
cudnn/MHA.cpp) and bitsandbytes' backends/cuda/ops.py.
"""

from typing import Any

import torch
import torch.nn.functional as F

from loracle.dryrun import ops
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


class FusedAttention(torch.autograd.Function):
    """Scaled dot product attention without a score matrix (cuDNN, flash or memory-efficient).

    Saves q, k, v, the output and one fp32 log-sum-exp a query row. The output has the layout of
    the query, as all three kernels make it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        kernel: str,
        causal: bool,
        recorder: Recorder,
        phase: str,
    ) -> torch.Tensor:
        batch, heads, rows, _ = q.shape
        out = torch.empty(
            batch, rows, heads, v.shape[-1], dtype=q.dtype, device=q.device
        ).transpose(1, 2)
        if kernel == "efficient":
            rows = (rows + 31) // 32 * 32
        lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
        seed = torch.empty(2, dtype=torch.int64, device=q.device)
        offset = torch.empty(1, dtype=torch.int64, device=q.device)
        ctx.kernel, ctx.causal, ctx.recorder = kernel, causal, recorder
        recorder.note(ops.attention(q, k, v, kernel, causal, phase))
        ctx.save_for_backward(q, k, v, bias, out, lse, seed, offset)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        q, k, v, bias, out, lse, seed, offset = ctx.saved_tensors
        batch, heads, rows, dim = q.shape
        if ctx.kernel == "cudnn":  # takes any layout with a unit stride inside (cuDNN >= 9.5.1)
            if grad.stride(-1) != 1:
                grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
        else:
            grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
        dv = torch.empty_like(v)
        _attention_scratch(ctx.kernel, q, k)
        ctx.recorder.note(ops.attention(q, k, v, ctx.kernel, ctx.causal, "backward"))
        return dq, dk, dv, None, None, None, None, None


def _attention_scratch(kernel: str, q: torch.Tensor, k: torch.Tensor) -> None:
    """fp32 accumulators of the backward kernel, freed when it returns."""
    batch, heads, rows, dim = q.shape
    grouped = k.shape[1] != heads
    if kernel == "cudnn":
        scratch = [torch.empty(batch * heads * rows * (dim + 1), dtype=torch.float32, device="meta")]
        if grouped:
            pass
    elif kernel == "flash":
        rounded = (rows + 127) // 128 * 128
        wide = (dim + 31) // 32 * 32
        scratch = [
            torch.empty(batch, heads, rounded, dtype=torch.float32, device="meta"),
            torch.empty(batch, heads, rounded, wide, dtype=torch.float32, device="meta"),
        ]
        if grouped:
            scratch.append(torch.empty(batch, rows, heads, dim, dtype=q.dtype, device="meta"))
            scratch.append(torch.empty(batch, rows, heads, dim, dtype=q.dtype, device="meta"))
    else:
        scratch = [torch.empty(batch, heads, rows, dtype=torch.float32, device="meta")]
    del scratch


class Attention:
    """Chooses the kernel that CUDA's `_fused_sdp_choice` would, for a compute capability."""

    def __init__(self, capability: tuple[int, int], recorder: Recorder) -> None:
        self.capability = capability
        self.recorder = recorder

    def choose(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        dropout_p: float, grouped: bool,
    ) -> str:  # fmt: skip
        """cudnn, flash, efficient or math."""
        dim = max(q.shape[-1], v.shape[-1])
        half = q.dtype in (torch.float16, torch.bfloat16)
        hopper = self.capability[0] in (9, 10)
        limit = 256 if self.capability[0] == 9 else 128
        if hopper and half and dim <= limit and dim % 8 == 0 and v.shape[-1] % 8 == 0:
            return "cudnn"
        if half and bias is None and dim <= 256 and q.shape[-1] == v.shape[-1]:
            return "flash"
        if q.shape[1] == k.shape[1] or not grouped:
            return "efficient"
        return "math"

    def __call__(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """F.scaled_dot_product_attention."""
        return self._call(func, *args, **kwargs)

    def _call(
        self,
        func: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if query.device.type != "meta" or query.dim() != 4:
            return NotImplemented  # type: ignore[no-any-return]
        kernel = self.choose(query, key, value, attn_mask, dropout_p, enable_gqa)
        if kernel == "math":
            return NotImplemented  # type: ignore[no-any-return]
        bias = attn_mask
        if bias is not None and bias.dtype == torch.bool:
            # convert_boolean_attn_mask: where(mask, 0, -inf) in the query's dtype
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, float("-inf"))
        return FusedAttention.apply(
            query, key, value, bias, kernel, is_causal, self.recorder,
            self.recorder.op_phase(),
        )  # type: ignore[no-any-return]


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
    """bitsandbytes' path for long inputs: dequantise the whole weight, then F.linear."""
    with recorder:
        if absmax_8bit is not None:
            scales = torch.empty_like(absmax_8bit, dtype=torch.float32)
            absmax = scales + absmax_offset
        weight = torch.empty(tuple(shape), dtype=a.dtype, device=a.device)
        return F.linear(a, weight, bias)


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


def table() -> dict[Any, Any]:
    """Stand-ins by operator."""
    known = {
        aten.native_dropout.default: native_dropout,
        aten.native_dropout_backward.default: native_dropout_backward,
        aten.index.Tensor: index,
        aten._softmax_backward_data.default: softmax_backward,
        aten.embedding_dense_backward.default: embedding_dense_backward,
    }
    if hasattr(torch.ops, "bitsandbytes") and hasattr(torch.ops.bitsandbytes, "gemm_4bit"):
        known[torch.ops.bitsandbytes.gemm_4bit.default] = gemm_4bit
    return known
