"""Peak memory in closed form: residents, plus the largest moment of the step.

The step is a forward pass, a loss, a backward pass that walks the layers back, and an optimizer
step. Each kind of layer and the head are run once on a toy autograd (`decoder/tape.py`), which
gives what they keep and the points that can be their peaks as functions of tokens and positions.
The peak of the whole is then the largest of: end of the forward pass, loss, backward pass in the
last and the first layer of each kind, the embedding's gradient, optimizer step, evaluation.

Left out: memory that grows over a run as lengths change (it is in the range, not in the likely
value), and kernels that torch.compile would fuse.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loracle.domain.estimate import MemoryEstimate, Term
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.estimate import params
from loracle.estimate.decoder.parts import (
    evaluation_profiles,
    head_profile,
    layer_profiles,
    lays_flat,
)
from loracle.estimate.decoder.profile import Point, total, value
from loracle.estimate.decoder.tape import KINDS
from loracle.estimate.loading import loading_slack
from loracle.estimate.memory_ranges import doubt_of
from loracle.estimate.segments import Segments, replay_large
from loracle.estimate.slack import Shape, reserved_peak

AMPERE, HOPPER_LIKE = (8, 0), (9, 10)
HOPPER_WORKSPACE, WORKSPACE = 32 << 20, 8320 << 10  # cuBLAS, per thread that runs a gemm
CONTEXT_BYTES = 600 << 20  # where no card is given
BATCH_TENSORS = 3  # input_ids, labels, attention_mask: 8 bytes a token each

_FORMULAS = {
    "base": "NF4: n/2 + n/64 + n/16384 x 4 a tensor; the rest n x bytes of its dtype",
    "adapters": "sum over targets of rank x (in + out) x bytes",
    "optimizer": "two states an element in the optimizer's width, + 4/256 for 8-bit scales",
    "gradients": "one an element that is trained, of the layers already walked back",
    "buckets": "one more copy of the gradients (DistributedDataParallel)",
    "gathered": "weights of two layers gathered from all cards (FSDP)",
    "saved": "sum over layers of what the backward pass needs (checkpointing: the layer's input)",
    "working": "one layer recomputed and walked back: its saved tensors, gradients, temporaries",
    "logits": "last norm, logits and loss with their gradients",
    "dequant": "one weight unpacked to 16 bits and its scales",
    "casts": "16-bit copies of trained fp32 weights under autocast",
    "optimizer_scratch": "square roots of the second moments (foreach AdamW)",
    "embedding": "gradient of the embedding beside that of the head",
    "batch": "3 tensors x 8 bytes a token",
    "workspace": "cuBLAS, once for the forward and once for the backward thread",
}


@dataclass(frozen=True, slots=True)
class _Moment:
    """A candidate for the peak: its phase, and the bytes of each term."""

    phase: str
    parts: Mapping[str, float]

    @property
    def num_bytes(self) -> float:
        return sum(self.parts.values())


def estimate_memory(setup: TrainingSetup, gpu: Gpu | None = None) -> MemoryEstimate:
    """Peak memory of one process training `setup`, on `gpu` or on an Ampere-like card.

    Raises UnsupportedModel (E033) for a model without a layer law.
    """
    capability = gpu.compute_capability if gpu else AMPERE
    fixed = _fixed(setup, capability)
    step = _Step(setup, capability)
    moments = [_Moment(phase, {**fixed, **parts}) for phase, parts in step.moments()]
    peak = max(moments, key=_num_bytes)
    segments = step.segments()
    reserved = reserved_peak(
        segments,
        max(one.num_bytes for one in moments if one.phase not in ("optimizer", "evaluation")),
        max(one.num_bytes for one in moments if one.phase == "optimizer"),
    )
    if setup.eval_micro_batch:
        reserved = max(reserved + step.evaluation_segments(setup.eval_micro_batch), peak.num_bytes)
    sums = params.totals(setup)
    outside = (gpu.context_bytes if gpu else CONTEXT_BYTES) + sums.managed / _shards(setup)
    doubt = doubt_of(setup)
    reserved_range = doubt.reserved(
        reserved, peak.num_bytes, peak.num_bytes - sum(fixed.values()), segments
    )
    return MemoryEstimate(
        engine="formula",
        model_bytes=int(fixed["base"] + fixed["adapters"]),
        allocated_bytes=doubt.allocated(peak.num_bytes),
        reserved_bytes=reserved_range,
        device_bytes=reserved_range.plus(outside),
        peak_phase=peak.phase,
        terms=tuple(_terms(setup, peak)),
        trainable_params=sums.trainable,
        notes=doubt.notes,
    )


def _num_bytes(moment: _Moment) -> float:
    return moment.num_bytes


def _terms(setup: TrainingSetup, peak: _Moment) -> Iterator[Term]:
    values: Mapping[str, object] = {
        "tokens": setup.micro_step_tokens,
        "layers": setup.model.num_layers,
        "trainable": params.totals(setup).trainable,
        "parameters": setup.model.num_params,
    }
    for name, size in peak.parts.items():
        if size:
            yield Term(
                id=f"memory.{name}", value=size, formula=_FORMULAS[name], values=values,
                source="transformers 5.17, PEFT 0.21, bitsandbytes 0.50, torch 2.11",
            )  # fmt: skip


def _shards(setup: TrainingSetup) -> int:
    return setup.num_gpus if setup.parallel == "fsdp" else 1


def _fixed(setup: TrainingSetup, capability: tuple[int, int]) -> dict[str, float]:
    """What is there throughout the step."""
    shards = _shards(setup)
    sums = params.totals(setup)
    workspace = HOPPER_WORKSPACE if capability[0] in HOPPER_LIKE else WORKSPACE
    fixed = {
        "base": sums.base / shards,
        "adapters": sums.adapters / shards,
        "optimizer": sums.optimizer / shards,
        "batch": float(BATCH_TENSORS * 8 * setup.micro_step_tokens),
        "workspace": 2.0 * workspace,
    }
    if setup.num_gpus > 1 and setup.parallel == "ddp":
        fixed["buckets"] = float(sums.gradients)
    if shards > 1:
        fixed["gathered"] = 2.0 * sums.base / max(1, setup.model.num_layers)
    return fixed


class _Step:
    """One micro-batch of a setup: its profiles put into numbers, and the moments of the step."""

    def __init__(self, setup: TrainingSetup, capability: tuple[int, int]) -> None:
        self.setup, self.capability = setup, capability
        self.kinds, self.order = layer_profiles(setup, capability)
        self.head = head_profile(setup, capability)
        self.tokens, self.positions = setup.micro_step_tokens, _positions(setup, capability)
        self.kept = [self._size(profile.kept) for profile in self.kinds]
        self.counts = Counter(self.order)
        self.all_kept = sum(self.kept[kind] * count for kind, count in self.counts.items())
        self.every_gradient = params.totals(setup).gradients / _shards(setup)
        # From the second micro-batch on, every gradient is there before the backward pass.
        self.before = self.every_gradient if setup.grad_accum > 1 else 0.0

    def _size(self, size: tuple[float, float, float]) -> float:
        return value(size, self.tokens, self.positions)

    def moments(self) -> Iterator[tuple[str, dict[str, float]]]:
        """(phase, bytes by term) of everything that can be the peak, residents left out."""
        casts = sum(
            self._size(self.kinds[kind].casts) * count for kind, count in self.counts.items()
        )
        for point in self.head.forward:
            yield "loss", self._parts(point, self.before, self.all_kept, casts, head=True)
        for point in self.head.backward:
            yield "loss", self._parts(point, self.before, self.all_kept, 0.0, head=True)
        yield from self._walk_back()
        if self.setup.method == "full":
            yield "backward", self._embedding_gradient()
        yield "optimizer", self._optimizer_step()
        if self.setup.eval_micro_batch:
            yield from self._evaluation(self.setup.eval_micro_batch)

    def _walk_back(self) -> Iterator[tuple[str, dict[str, float]]]:
        """The backward pass in the last and the first layer of each kind."""
        above, below = self._size(self.head.gradients), self.all_kept
        grads = [self._size(profile.gradients) for profile in self.kinds]
        first = {kind: self.order.index(kind) for kind in set(self.order)}
        seen: set[int] = set()
        for at in range(len(self.order) - 1, -1, -1):
            kind = self.order[at]
            below -= self.kept[kind]
            if kind not in seen or at == first[kind]:
                seen.add(kind)
                for point in self.kinds[kind].backward:
                    yield "backward", self._parts(point, self.before or above, below, 0.0)
            above += grads[kind]

    def _parts(
        self, point: Point, gradients: float, kept: float, casts: float, *, head: bool = False
    ) -> dict[str, float]:
        by_kind = {
            kind: value(one, self.tokens, self.positions)
            for kind, one in zip(KINDS, point, strict=True)
        }
        moving = by_kind["activation"] + by_kind["logits"]
        return {
            "gradients": gradients + by_kind["gradient"],
            "saved": kept,
            "working": 0.0 if head else moving,
            "logits": moving if head else 0.0,
            "dequant": by_kind["dequant"],
            "casts": casts + by_kind["cast"],
        }

    def _embedding_gradient(self) -> dict[str, float]:
        """Full fine-tuning ends in the embedding; a tied one already has the head's gradient."""
        item = params.ITEM[self.setup.base_dtype]
        dense = float(self.setup.model.embedding_params * item)
        stream = self.tokens * self.setup.model.hidden_size * item
        return {
            "gradients": self.every_gradient,
            "working": stream,
            "embedding": dense if self.setup.model.tied_embeddings else 0.0,
        }

    def _optimizer_step(self) -> dict[str, float]:
        foreach = self.setup.optimizer == "adamw_torch"
        return {
            "gradients": self.every_gradient,
            "optimizer_scratch": self.every_gradient if foreach else 0.0,
        }

    def _evaluation(self, rows: int) -> Iterator[tuple[str, dict[str, float]]]:
        """A forward pass that saves nothing, between two optimizer steps (no gradients).

        The model's code holds the embeddings to its end; autocast's copies stay until the loss.
        """
        setup = self.setup.with_changes(micro_batch=rows, eval_micro_batch=None)
        alone = _Step(setup, self.capability)
        kinds, order, head = evaluation_profiles(setup, self.capability)
        item = 4 if setup.kbit_upcast and setup.quant else params.ITEM[setup.base_dtype]
        embeddings = float(alone.tokens * setup.model.hidden_size * item)
        casts = 0.0
        for at, kind in enumerate(order):
            if at + 1 == len(order) or kind not in order[at + 1 :]:
                for point in kinds[kind].forward:
                    yield "evaluation", alone._parts(point, 0.0, embeddings if at else 0.0, casts)
            casts += alone._size(kinds[kind].casts)
        for point in head.forward:
            yield "evaluation", alone._parts(point, 0.0, 0.0, casts, head=True)

    def evaluation_segments(self, rows: int) -> float:
        """Bytes that an evaluation of so many rows reserves beside what training did.

        Training leaves its segments behind, none larger than its largest tensor: what an
        evaluation makes above that size needs segments of its own.
        """
        largest = max(
            self._size(size)
            for profile in (*self.kinds, self.head)
            for _, size in (*profile.lives.forward, *profile.lives.backward)
        )
        alone = _Step(
            self.setup.with_changes(micro_batch=rows, eval_micro_batch=None), self.capability
        )
        kinds, order, head = evaluation_profiles(alone.setup, self.capability)
        fresh = Segments()
        for profile in (*(kinds[kind] for kind in dict.fromkeys(order)), head):
            lives = profile.lives.forward + profile.lives.uncast
            replay_large(fresh, ((number, alone._size(size)) for number, size in lives), largest)
        return float(fresh.reserved)

    def segments(self) -> Shape:
        """The sizes that decide how well the caching allocator's segments are used."""
        last = self.order[-1]
        fused = self.setup.fused_head
        every = self.setup.checkpoint_every if self.setup.gradient_checkpointing else 1
        whole = sum(self.kept[kind] for at, kind in enumerate(self.order) if at % every)
        return Shape(
            loading=loading_slack(self.setup) / _shards(self.setup),
            forward=self._peak(self.kinds[last].forward) - self.kept[last],
            logits=0.0 if fused else 4.0 * self.tokens * self.setup.model.vocab_size,
            kept=self.all_kept - whole,
            checkpointed=self.setup.gradient_checkpointing,
            kept_whole=whole,
        )

    def _peak(self, points: Sequence[Point]) -> float:
        return max(self._size(total(point)) for point in points)


def _positions(setup: TrainingSetup, capability: tuple[int, int]) -> int:
    """Keys that a query is scored against where scores or masks are held in full.

    A batch that lies flat has all its tokens in one row, as TRL's packed one has.
    """
    flat = lays_flat(setup, capability) or (setup.packing and setup.stack == "trl")
    return setup.micro_step_tokens if flat else setup.seq_len
