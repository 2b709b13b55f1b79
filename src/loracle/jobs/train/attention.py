"""Attention over packed documents without a mask: torch's own variable-length flash kernel.

With a block-diagonal mask SDPA leaves its flash path and computes the masked blocks too. The
kernel below takes the documents' bounds instead, so packing costs no attention across documents
and no memory for a mask. It needs Ampere or newer, a 16-bit dtype and plain softmax attention; it
is compared with SDPA on the card before it is used, and SDPA stays where they differ.
"""

import inspect
from functools import cache
from typing import Any

import torch

NAME = "loracle_varlen"
_repeats_keys = True  # settled on the card, see _settle_groups
_TOLERANCE = 2e-2  # bf16 rounding of values of order 1, summed in another order


def usable(device: torch.device, dtype: torch.dtype, *, softcapped: bool) -> bool:
    """Whether this card computes the kernel, proved by one small packed forward and backward."""
    if device.type != "cuda" or softcapped or dtype not in (torch.bfloat16, torch.float16):
        return False
    if torch.cuda.get_device_capability(device) < (8, 0) or _varlen() is None:
        return False
    return _settle_groups(device, dtype)


def register() -> str:
    """Make the kernel known to transformers; returns the name for `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _forward)
    return NAME


def _settle_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel agrees, with grouped keys as they are or else with keys repeated.

    Some versions of torch take fewer key heads without being told, others refuse; repeating keys
    and values costs memory and time, so it comes second.
    """
    global _repeats_keys
    for _repeats_keys in (False, True):
        try:
            if _agrees(device, dtype):
                return True
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
    return False


def _varlen() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # torch before 2.10
        return None
    return varlen_attn


@cache
def _options() -> frozenset[str]:
    """Names of the kernel's parameters: they differ between versions of torch."""
    return frozenset(inspect.signature(_varlen()).parameters)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """(rows, heads, tokens, head_dim) to (rows, tokens, heads, head_dim), documents kept apart.

    Rows that are one document each need no bounds, and SDPA's flash path then costs the host less;
    only a sliding window that is shorter than the row is left to the kernel, since SDPA has none.
    """
    rows, _, length, _ = query.shape
    if cu_seq_lens_q is None and (sliding_window is None or length <= sliding_window):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    if cu_seq_lens_q is None:
        cu_seq_lens_q = torch.arange(
            0, rows * length + 1, length, dtype=torch.int32, device=query.device
        )
        max_length_q = length
    output = _call(
        *(one.transpose(1, 2).flatten(0, 1) for one in (query, key, value)),
        cu_seq_lens_q,
        int(max_length_q or length),
        scaling,
        sliding_window,
    )
    return output.unflatten(0, (rows, length)), None


def _call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """(tokens, heads, head_dim) each; causal inside the documents that `bounds` delimit."""
    varlen, known = _varlen(), _options()
    options: dict[str, Any] = {}
    if "window_size" in known:
        options["window_size"] = (-1 if sliding_window is None else sliding_window - 1, 0)
    elif sliding_window is None:
        options["is_causal"] = True
    else:
        raise NotImplementedError("this torch has no sliding window in varlen_attn")
    if query.shape[1] != key.shape[1]:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        elif _repeats_keys:
            groups = query.shape[1] // key.shape[1]
            key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    if "scale" in known:
        options["scale"] = scaling
    elif scaling is not None and abs(scaling * query.shape[-1] ** 0.5 - 1) > 1e-6:
        query = query * (scaling * query.shape[-1] ** 0.5)
    result: torch.Tensor = varlen(query, key, value, bounds, bounds, longest, longest, **options)
    return result


def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Two documents of 48 and 80 tokens, 4 query heads on 2 key heads, against SDPA."""
    generator = torch.Generator(device).manual_seed(0)
    lengths, heads, groups, width = (48, 80), 2, 2, 64
    shapes = [(128, heads * groups, width), (128, heads, width), (128, heads, width)]
    packed = [
        torch.randn(shape, device=device, dtype=dtype, generator=generator).requires_grad_()
        for shape in shapes
    ]
    bounds = torch.tensor([0, 48, 128], device=device, dtype=torch.int32)
    output = _call(*packed, bounds, 80, width**-0.5, None)
    expected = torch.cat([
        _sdpa(*(part.split(lengths)[index] for part in packed), groups)
        for index in range(len(lengths))
    ])  # fmt: skip
    probe = torch.randn(output.shape, device=device, dtype=dtype, generator=generator)
    got = (output, *torch.autograd.grad(output, packed, probe))
    wanted = (expected, *torch.autograd.grad(expected, packed, probe))
    return all(
        torch.allclose(
            a.float(), b.float(), rtol=_TOLERANCE, atol=_TOLERANCE * b.abs().max().item()
        )
        for a, b in zip(got, wanted, strict=True)
    )


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: int) -> torch.Tensor:
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    rows = [one.transpose(0, 1)[None] for one in (query, key, value)]
    result = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True)
    return result[0].transpose(0, 1)
