"""The end of the model: last norm, output head and loss, as each stack computes them.

`hf-trainer` holds the whole logits: 16-bit from the head, an fp32 copy for the loss
(transformers/loss/loss_utils.py), log-probabilities, and accelerate's fp32 copy of the outputs.
`trl` and `loracle` score the labelled positions in tiles of 4,096 tokens by 32,768 words
(trl/kernels/chunked_logprob.py, CUDA path) and never hold them.
"""

from collections.abc import Sequence

from loracle.domain.model import ModelShape
from loracle.estimate.decoder import ops as op
from loracle.estimate.decoder.tape import (
    Saved,
    Storage,
    Tape,
    Tensor,
    Weight,
    attach,
    empty,
    like,
    widths,
)  # fmt: skip

TILE_TOKENS, TILE_WORDS = 4096, 32768


def plain_loss(t: Tape, hidden: Tensor, head: Weight, shape: ModelShape) -> tuple[Tensor, Storage]:
    """(log-probabilities, the outputs' logits): transformers' ForCausalLMLoss."""
    logits = op.linear(t, hidden, head, shape.vocab_size)
    if shape.config.get("logit_scale") or shape.config.get("logits_scaling"):
        logits = op.scale(t, logits)
    if shape.logit_softcap:
        logits = op.scale(t, op.unary(t, op.scale(t, logits), saves_output=True))
    scores = op.cast(t, logits, "float32")
    out = like(t, scores)
    held = Saved(t, out)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        back = like(t, grad)
        del kept
        return (back,)

    attach(t, out, run, scores)
    assert logits.storage is not None
    return out, logits.storage


def fused_loss(t: Tape, hidden: Tensor, head: Weight, shape: ModelShape, short: bool) -> Tensor:
    """TRL's tiles over labelled positions; `short`: fewer tokens than one tile has."""
    width = shape.embedding_width or shape.hidden_size
    picked = _labelled(t, hidden)
    compute = t.autocast or picked.dtype
    tile = (0.0, 2.0 * TILE_WORDS, 0.0) if short else (2.0 * TILE_WORDS * TILE_TOKENS, 0.0, 0.0)
    slices = []
    if picked.dtype != compute:
        slices.append((0.0, 2.0 * width, 0.0) if short else (2.0 * width * TILE_TOKENS, 0.0, 0.0))
    if head.dtype != compute:
        slices.append((2.0 * width * min(TILE_WORDS, shape.vocab_size), 0.0, 0.0))
    statistics = empty(t, widths(7), "float32")
    scratch = [Storage(t, one) for one in (tile, *slices)]
    scratch.clear()
    del statistics
    out = empty(t, widths(4), "float32")
    held = Saved(t, picked, out)
    source = picked.dtype
    trained = head.node is not None

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        kept = held.take()
        wide = empty(t, widths(width), "float32")
        wide_head = empty(t, head.elements, "float32") if trained else None
        scratch = [Storage(t, one) for one in (tile, *slices)]
        back = op.cast(t, wide, source)
        head_back = None
        if wide_head is not None:
            head_back = op.cast(t, wide_head, head.dtype)
        del wide, wide_head
        scratch.clear()
        del kept
        return (back, head_back)

    return attach(t, out, run, picked, head)


def _labelled(t: Tape, hidden: Tensor) -> Tensor:
    """hidden[mask]: a copy; its gradient is scattered into zeros, then padded back."""
    out = like(t, hidden)

    def run(grad: Tensor) -> Sequence[Tensor | None]:
        return (like(t, grad),)

    return attach(t, out, run, hidden)
