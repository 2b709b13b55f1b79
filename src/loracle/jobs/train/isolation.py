"""Documents that share a batch must not see each other: asked of the very model that is trained.

Whether they do depends on the architecture and on the version of transformers. Some layers do not
hand the documents' bounds on to attention (StableLM), some compute attention themselves (Falcon),
some build a mask of their own that knows nothing of positions (OPT, BLOOM, MPT), and a recurrent
state or a convolution runs over the bounds whatever the mask says (Mamba, Qwen3.5). None of them
complains, and the loss looks as it should. So a few dozen tokens go through the loaded model in the
collator's own batches, before the first step.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from loracle.domain.setup import TrainingSetup
from loracle.errors import RunError
from loracle.jobs.train import attention
from loracle.jobs.train.collate import Collator
from loracle.jobs.train.faults import is_out_of_memory
from loracle.jobs.train.states import rng_states, set_rng_states

# Shares of what another first token does to the rest of the same document.
_LEAK = 0.01  # exact models read 0
_LEAK_SHARED = 0.1  # LLM.int8 picks outlier columns over the whole batch; experts compute the rows
# that they are sent together, and round them otherwise when others come (Mixtral in bf16: 0.006)
_DIFFERENT = 0.3  # bf16's rounding in another kernel stays under a tenth, wrong positions exceed 1
_LENGTHS = (24, 16, 12)
_STRIDE = 7919  # a prime: the next number is another token, far away in the vocabulary


@dataclass(frozen=True, slots=True)
class Layout:
    """How documents share a batch: the attention kernel, the collator's layout, packed or not.

    `passed_over` are faster kernels in which this model's documents would see each other.
    """

    attention: str
    flat: bool
    packing: bool
    passed_over: tuple[str, ...] = field(default=(), compare=False)


def settle_layout(model: Any, setup: TrainingSetup, device: torch.device) -> Layout:
    """The first layout, fastest first, in which documents are apart; packing is given up last.

    Leaves the model's weights, mode and random generators as they were, its attention kernel at
    the last one that was tried (`use_layout` sets the one to train with).

    Raises RunError E074 where a longer neighbour in the batch, or the padding that it causes,
    changes a document's logits.
    """
    for packing in (True, False) if setup.packing else (False,):
        passed_over: tuple[str, ...] = ()
        for kernel, flat in _kernels(setup, device):
            layout = Layout(kernel, flat, packing, passed_over)
            if _computes(kernel, model, setup, layout):
                return layout
            passed_over += (kernel,)
    raise RunError(
        "error.train.padding", code="E074", hint="hint.train.padding",
        architecture=architecture_of(model),
    )  # fmt: skip


def use_layout(model: Any, layout: Layout) -> None:
    """Switch the model to the layout's attention kernel."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if layout.attention == attention.NAME:
        attention.register()
    base.set_attn_implementation(layout.attention)


def architecture_of(model: Any) -> str:
    """The model's architecture as transformers names it."""
    return str(_config(model).model_type)


def keeps_apart(model: Any, setup: TrainingSetup, layout: Layout) -> bool:
    """Whether each document's logits depend on itself alone, and are those that it has alone.

    Every other document and the padding is replaced, which must change nothing. That finds any
    leak, whatever its size; comparing with the document alone, in the recipe's own kernel, finds
    positions or masks that are wrong in the same way each time. Logits that are no numbers prove
    nothing; the watch over the loss will speak of them.
    """
    rows = _rows(setup, layout)
    if sum(map(len, rows)) == 1:
        return True
    probe = _Probe(model, setup)
    random, training = rng_states(), model.training
    model.eval()
    try:
        with torch.no_grad():
            return probe.rows_are_apart(rows, layout)
    finally:
        model.train(training)
        set_rng_states(random)


def _computes(kernel: str, model: Any, setup: TrainingSetup, layout: Layout) -> bool:
    """`keeps_apart`; our own kernel is passed over where it refuses the model's shapes.

    It was compared with SDPA on plain heads; values narrower than queries (DeepSeek V2, MiniCPM3)
    or head dims that flash attention has no code for are refused with one of these.
    """
    if kernel != attention.NAME:
        return keeps_apart(model, setup, layout)
    try:
        return keeps_apart(model, setup, layout)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return False


class _Probe:
    """A few documents, and what the model says of them."""

    def __init__(self, model: Any, setup: TrainingSetup) -> None:
        self._model, self._setup = model, setup
        self._device = next(model.parameters()).device
        self._vocabulary = _config(model).vocab_size
        shared = setup.quant == "int8" or setup.model.num_experts > 0
        self._leak = _LEAK_SHARED if shared else _LEAK

    def rows_are_apart(self, rows: Sequence[Sequence[int]], layout: Layout) -> bool:
        """`rows` names the documents of each row by their place in `_LENGTHS`."""
        documents = {one for row in rows for one in row}
        alone = {one: self._alone(one) for one in sorted(documents)}
        if not all(logits.isfinite().all() for logits in alone.values()):
            return True
        one_token = self._with_another_start(alone[0])
        scale, usual = _distance(*one_token), _usual_distance(*one_token)
        together = self._logits(rows, layout)
        for one in sorted(documents):
            changed = self._logits(rows, layout, changed=documents - {one})
            if not _distance(together[one], changed[one]) <= self._leak * scale:
                return False
            if not _usual_distance(together[one], alone[one]) <= _DIFFERENT * usual:
                return False
        return True

    def _with_another_start(self, alone: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Document 0 after its first token, and so after another one: the measure of a leak."""
        tokens = [self._tokens(0, changed=True)[0], *self._tokens(0)[1:]]
        return alone[1:], self._alone(0, tokens)[1:]

    def _alone(self, document: int, tokens: list[int] | None = None) -> torch.Tensor:
        plain = Layout(self._setup.attention, flat=False, packing=False)
        return self._forward([[tokens or self._tokens(document)]], plain)[0]

    def _logits(
        self, rows: Sequence[Sequence[int]], layout: Layout, changed: set[int] | None = None
    ) -> dict[int, torch.Tensor]:
        changed = changed or set()
        tokens = [[self._tokens(one, changed=one in changed) for one in row] for row in rows]
        parts = self._forward(tokens, layout, padding=1 if changed else 0)
        return dict(zip((one for row in rows for one in row), parts, strict=True))

    def _forward(
        self, rows: list[list[list[int]]], layout: Layout, padding: int = 0
    ) -> list[torch.Tensor]:
        """Logits of each document, (tokens, vocabulary), in the order of the rows."""
        use_layout(self._model, layout)
        batch = Collator(self._id(padding), layout.flat)([_as_row(row) for row in rows])
        inputs = {
            name: value.to(self._device) if torch.is_tensor(value) else value
            for name, value in batch.items()
            if name != "labels"
        }
        with self._autocast():
            logits = self._model(**inputs, use_cache=False).logits.float()
        lengths = [[len(document) for document in row] for row in rows]
        if layout.flat:
            lengths = [[one for row in lengths for one in row]]
        return [
            part
            for row, parts in zip(logits, lengths, strict=True)
            for part in row[: sum(parts)].split(parts)
        ]

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._setup.autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, getattr(torch, self._setup.autocast))

    def _tokens(self, document: int, *, changed: bool = False) -> list[int]:
        start = 100 * document + (1 if changed else 0)
        return [self._id(start + place) for place in range(_LENGTHS[document])]

    def _id(self, number: int) -> int:
        """A token of the middle half of the vocabulary: special ones lie at its ends."""
        quarter = self._vocabulary // 4
        return quarter + number * _STRIDE % (2 * quarter)


def _kernels(setup: TrainingSetup, device: torch.device) -> Iterator[tuple[str, bool]]:
    """Attention kernels and whether the collator's flat layout goes with them, fastest first."""
    dtype = torch.float32 if setup.kbit_upcast else getattr(torch, setup.base_dtype)
    softcapped = bool(setup.model.attention_softcap)
    if setup.attention == "sdpa" and attention.usable(device, dtype, softcapped=softcapped):
        yield attention.NAME, True
    if setup.attention == "flash_attention_2":  # finds packed rows by positions in batches of one
        yield setup.attention, True
    yield setup.attention, False


def _rows(setup: TrainingSetup, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Which documents share which row: as in the run, with a shorter neighbour to be padded."""
    first = (0, 1) if layout.packing else (0,)
    several = max(setup.micro_batch, setup.eval_micro_batch or 1) > 1
    return (first, (2,)) if several else (first,)


def _as_row(documents: list[list[int]]) -> dict[str, list[int]]:
    ids = [one for document in documents for one in document]
    lengths = [len(document) for document in documents]
    return {"input_ids": ids, "labels": ids, "seq_lengths": lengths}


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """The mean change of a position's logits, at the position where it is largest."""
    return float((left - right).abs().mean(-1).max())


def _usual_distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """The mean change of a position's logits, at the median position.

    Rounding in another kernel can turn one position over altogether (SmolLM2 in bf16 on a CPU: 1 of
    24, where the others move by 1 %); wrong positions or masks move them all.
    """
    return float((left - right).abs().mean(-1).median())


def _config(model: Any) -> Any:
    return model.config.get_text_config()
