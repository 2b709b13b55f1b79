"""Holes that loading a model leaves in the caching allocator's segments.

A quantised weight is on the card in 16 bits before it is packed, and its packed form moves into
what an earlier 16-bit copy left free: segments stay pinned by a quarter of their size. On a 30B
model that is 1.7 GiB which no activation of the right size may ever use. The order of requests is
that of bitsandbytes' `quantize_4bit` layer by layer (functional.py), then of what stays in 16
bits, then of PEFT's fp32 copies; a loader that keeps more 16-bit copies at a time leaves more.
"""

from collections.abc import Iterator

from loracle.domain.model import ModelShape
from loracle.domain.setup import TrainingSetup
from loracle.estimate import params
from loracle.estimate.segments import SMALL, Block, Segments, release

_REMEMBERED = 128
_known: dict[tuple[int, str | None, bool, str], tuple[ModelShape, int]] = {}


def loading_slack(setup: TrainingSetup) -> int:
    """Bytes reserved beyond what the loaded model holds."""
    quant = params.effective_quant(setup)
    upcast = setup.kbit_upcast and setup.quant is not None
    key = (id(setup.model), quant, upcast, setup.base_dtype)
    if key not in _known:
        if len(_known) >= _REMEMBERED:
            _known.pop(next(iter(_known)))
        _known[key] = (setup.model, _replay(setup, quant, upcast))
    return _known[key][1]


def _replay(setup: TrainingSetup, quant: str | None, upcast: bool) -> int:
    segments = Segments()
    shape, item = setup.model, params.ITEM[setup.base_dtype]
    if quant is not None:
        for elements in _layer_by_layer(shape):
            _quantise(segments, elements, quant)
    kept = []
    for elements in _sixteen_bit(shape, with_linears=quant is None):
        drawn = _malloc(segments, elements * item)
        block = _malloc(segments, elements * item)
        _free(segments, drawn)
        kept.append((block, elements))
    release(segments)
    if upcast:
        for block, elements in kept:
            _malloc(segments, elements * 4)
            _free(segments, block)
        release(segments)
    return segments.reserved - segments.allocated


def _layer_by_layer(shape: ModelShape) -> Iterator[int]:
    """Elements of the Linear weights in the order of the model."""
    rows = [row for row in shape.linears if row.role != "head"]
    for layer in range(shape.num_layers):
        for row in rows:
            if layer < row.count:
                yield row.in_features * row.out_features


def _sixteen_bit(shape: ModelShape, *, with_linears: bool) -> Iterator[int]:
    """Elements of what is not quantised: embedding, layers, experts, head."""
    yield shape.embedding_params
    if with_linears:
        yield from _layer_by_layer(shape)
    for elements, count, kind in params.base_tensors(shape):
        if kind == "rest":
            yield from (elements for _ in range(count))


def _quantise(segments: Segments, elements: int, quant: str) -> None:
    """Two 16-bit copies of a weight, its scales, its packed form."""
    drawn = _malloc(segments, 2 * elements)
    scaled = _malloc(segments, 2 * elements)
    _free(segments, drawn)
    if quant == "int8":
        _malloc(segments, elements)
    else:
        scales = _malloc(segments, elements // params.NF4_BLOCK * 4)
        _malloc(segments, (elements + 1) // 2)
        if quant == "nf4-double":
            centred = _malloc(segments, elements // params.NF4_BLOCK * 4)
            _malloc(segments, elements // params.NF4_BLOCK)
            _free(segments, centred)
            _free(segments, scales)
    _free(segments, scaled)


def _malloc(segments: Segments, num_bytes: int) -> Block | None:
    size = params.rounded(num_bytes)
    return segments.malloc(size) if size > SMALL else None


def _free(segments: Segments, block: Block | None) -> None:
    if block is not None:
        segments.free(block)
