"""The arithmetic of a merge, in the order and the dtypes that PEFT uses, so that bits agree.

PEFT lifts 16-bit adapter weights to fp32, multiplies B by A, scales, adds to the base in fp32 and
rounds once to the base's dtype. DoRA rescales each output row to its learned magnitude. Rows are
independent of each other, so large tensors are done in blocks of rows.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_ELEMENTS = 16 << 20  # 64 MiB of fp32


def merged_weight(
    weight: "Tensor",
    a: "Tensor",
    b: "Tensor",
    scaling: float,
    *,
    magnitude: "Tensor | None" = None,
    fan_in_fan_out: bool = False,
) -> "Tensor":
    """Base weight (out, in) plus scaling * B A, in the base's dtype; overwrites `weight`.

    a: (rank, in), b: (out, rank), magnitude: (out,) for DoRA. With `fan_in_fan_out` the weight is
    (in, out) and the update is transposed.
    """
    a, b = _lifted(a), _lifted(b)
    if fan_in_fan_out:
        update = (b @ a).T * scaling
        return _add(weight, update, magnitude, fan_in_fan_out=True)
    rows = max(1, BLOCK_ELEMENTS // weight.shape[1])
    for start in range(0, weight.shape[0], rows):
        block = slice(start, start + rows)
        update = (b[block] @ a) * scaling
        part = magnitude[block] if magnitude is not None else None
        weight[block] = _add(weight[block], update, part, fan_in_fan_out=False)
    return weight


def merged_embedding(weight: "Tensor", a: "Tensor", b: "Tensor", scaling: float) -> "Tensor":
    """Embedding (tokens, width) plus scaling * (B A)^T; a: (rank, tokens), b: (width, rank).

    PEFT rounds the update before it is added here, other than for Linear layers.
    """
    weight += ((_lifted(b) @ _lifted(a)).T * scaling).to(weight.dtype)
    return weight


def _add(
    weight: "Tensor", update: "Tensor", magnitude: "Tensor | None", *, fan_in_fan_out: bool
) -> "Tensor":
    if magnitude is None:
        weight += update
        return weight
    import torch

    tuned = weight + update
    norm = torch.linalg.norm(tuned.T if fan_in_fan_out else tuned, dim=1)
    factor = (_lifted(magnitude) / norm).view(-1, 1)
    return ((factor.T if fan_in_fan_out else factor) * tuned).to(weight.dtype)


def _lifted(tensor: "Tensor") -> "Tensor":
    import torch

    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
