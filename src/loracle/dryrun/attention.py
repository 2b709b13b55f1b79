"""Which attention kernel CUDA would run, and what it keeps and needs.

Sources: torch's native/transformers/cuda/sdp_utils.cpp (choice), attention.cu and
attention_backward.cu, flash_attn/flash_api.cpp, native/cudnn/MHA.cpp; for packed documents
torch.nn.attention.varlen. None of the fused kernels holds a score matrix.

The workspace of cuDNN's backward kernel is in no source. The allocator's own log of runs on a
Hopper card shows an fp32 accumulator of the query's gradient, one float a query row and 256 bytes,
and with grouped heads the key and value gradients of every query head.
"""

from typing import Any

import torch

from loracle.dryrun import ops
from loracle.dryrun.recorder import Recorder
from loracle.errors import EngineError

VARLEN = "loracle_dryrun_varlen"  # the name under which transformers finds our packed attention


def _output_like(q: torch.Tensor, dim: int, kernel: str) -> torch.Tensor:
    """The output in the layout that the kernel gives it, which decides whether it is copied later.

    cuDNN's and flash attention's follow the query's order of strides; the memory-efficient one is
    always (batch, rows, heads, head_dim) in memory.
    """
    batch, heads, rows, _ = q.shape
    strides = q.stride()
    order = sorted(range(4), key=lambda i: (-strides[i], i))
    if kernel == "efficient":
        order = [0, 2, 1, 3]
    sizes = (batch, heads, rows, dim)
    out = torch.empty([sizes[i] for i in order], dtype=q.dtype, device=q.device)
    return out.permute([order.index(i) for i in range(4)])


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
        """(batch, heads, rows, head_dim) in the layout of the query."""
        batch, heads, rows, _ = q.shape
        if kernel == "efficient":
            rows = (rows + 31) // 32 * 32
        seed = torch.empty(1, dtype=torch.int64, device=q.device)
        offset = torch.empty(1, dtype=torch.int64, device=q.device)
        out = _output_like(q, v.shape[-1], kernel)
        lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
        ctx.kernel, ctx.causal, ctx.recorder = kernel, causal, recorder
        recorder.note(ops.attention(q, k, v, kernel, causal, phase))
        saved = (bias, k, q, v, lse, out, offset, seed)  # autograd's own node lets go in this order
        ctx.checkpointed = recorder.checkpointed  # and a checkpoint in the opposite one
        ctx.save_for_backward(*(reversed(saved) if ctx.checkpointed else saved))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        """Gradients of q, k and v."""
        saved = ctx.saved_tensors
        if not ctx.checkpointed:
            saved = saved[::-1]
        # all names stay, in this order: they keep the tensors alive until the kernel is done
        _seed, _offset, _out, _lse, v, q, k, _bias = saved
        del saved
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
        size = batch * heads * rows * (dim + 1) * 4 + 256
        if grouped:  # key and value gradients of every query head, summed afterwards
            size += 2 * batch * heads * k.shape[2] * dim * k.element_size()
        scratch = [torch.empty(size, dtype=torch.uint8, device="meta")]
    elif kernel == "flash":
        rounded = (rows + 127) // 128 * 128
        wide = _rounded_width(dim)
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


def _rounded_width(dim: int) -> int:
    step = 32 if dim <= 128 else 64
    return (dim + step - 1) // step * step


class VarlenAttention(torch.autograd.Function):
    """Flash attention over packed documents: q, k, v are (tokens, heads, head_dim)."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: torch.Tensor,
        longest: int, recorder: Recorder, phase: str,
    ) -> torch.Tensor:  # fmt: skip
        """(tokens, heads, head_dim)."""
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        state = torch.empty(2, dtype=torch.int64, device=q.device)
        ctx.longest, ctx.recorder = longest, recorder
        ctx.save_for_backward(q, k, v, bounds, out, lse, state)
        recorder.note(_varlen_op(q, k, longest, phase))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        """Gradients of q, k and v."""
        q, k, v, bounds, *_ = ctx.saved_tensors
        tokens, heads, dim = q.shape
        grad = grad.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        padded = tokens + 128 * (bounds.numel() - 1)
        scratch = [
            torch.empty(heads, padded, dtype=torch.float32, device="meta"),
            torch.empty(padded, heads, _rounded_width(dim), dtype=torch.float32, device="meta"),
        ]
        if k.shape[1] != heads:
            scratch += [
                torch.empty(k.shape[0], heads, dim, dtype=q.dtype, device="meta") for _ in range(2)
            ]
        del scratch
        ctx.recorder.note(_varlen_op(q, k, ctx.longest, "backward"))
        return dq, dk, dv, None, None, None, None


def _varlen_op(q: torch.Tensor, k: torch.Tensor, longest: int, phase: str) -> Any:
    """The packed row priced as documents of the longest length."""
    documents = max(1, q.shape[0] // longest)
    shape = (documents, q.shape[1], longest, q.shape[2])
    rows = torch.empty(shape, dtype=q.dtype, device="meta")
    keys = torch.empty((documents, k.shape[1], longest, k.shape[2]), dtype=k.dtype, device="meta")
    return ops.attention(rows, keys, keys, "varlen", True, phase)


def register_varlen(recorder: Recorder) -> str:
    """Let transformers' models call the packed kernel, as loracle's trainer does on a card."""
    from transformers import AttentionInterface

    def forward(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: Any, cu_seq_lens_q: Any = None, max_length_q: Any = None, **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:  # fmt: skip
        if max_length_q is None:
            raise EngineError("dryrun.no_bounds", layer=type(module).__name__)
        q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
        if q.shape[-1] != v.shape[-1]:
            raise EngineError("dryrun.head_widths", query=q.shape[-1], value=v.shape[-1])
        out = VarlenAttention.apply(
            q, k, v, cu_seq_lens_q, int(max_length_q), recorder, recorder.op_phase()
        )
        return out[None], None

    AttentionInterface.register(VARLEN, forward)
    return VARLEN


class Attention:
    """Chooses the kernel that CUDA's `_fused_sdp_choice` would, for a compute capability."""

    def __init__(
        self, capability: tuple[int, int], recorder: Recorder, *, flash: bool = False
    ) -> None:
        self.capability = capability
        self.recorder = recorder
        self.flash = flash  # flash_attention_2 was asked for by name

    def choose(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        dropout_p: float, grouped: bool,
    ) -> str:  # fmt: skip
        """cudnn, flash, efficient or math."""
        if q.shape[1] != k.shape[1] and not grouped:
            return "math"  # key heads that are only broadcast: no fused kernel takes them
        if self.flash and bias is None:
            return "flash"
        dim = max(q.shape[-1], v.shape[-1])
        half = q.dtype in (torch.float16, torch.bfloat16)
        limit = 256 if self.capability[0] == 9 else 128
        if self.capability[0] in (9, 10) and half and dim <= limit and dim % 8 == 0:
            return "cudnn"
        ampere = self.capability >= (8, 0)
        if ampere and half and bias is None and dim <= 256 and q.shape[-1] == v.shape[-1]:
            return "flash"
        if q.dtype is torch.bfloat16 and not ampere:
            return "math"
        return "efficient" if q.shape[1] == k.shape[1] else "math"

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
            self.recorder.in_place = True  # the composite adds its mask in place on a card
            try:
                return func(  # type: ignore[no-any-return]
                    query, key, value, attn_mask=attn_mask, dropout_p=dropout_p,
                    is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
                )  # fmt: skip
            finally:
                self.recorder.in_place = False
        bias = attn_mask
        if bias is not None and bias.dtype == torch.bool:
            # convert_boolean_attn_mask: where(mask, 0, -inf) in the query's dtype
            bias = torch.empty_like(bias, dtype=query.dtype)
        return FusedAttention.apply(
            query,
            key,
            value,
            bias,
            kernel,
            is_causal,
            self.recorder,
            self.recorder.op_phase(),
        )  # type: ignore[no-any-return]
