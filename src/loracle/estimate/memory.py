"""Peak memory in closed form: residents, plus the largest moment of the step.

The step is a forward pass, a loss, a backward pass that walks the layers back, and an optimizer
step. Each layer and the head are run once on a toy autograd (`decoder/tape.py`), which gives what
they keep and the points that can be their peaks as functions of tokens and positions. The peak of
the whole is then the largest of: end of the forward pass, loss, backward pass in the last and the
first layer of each kind, optimizer step, evaluation.

What is left out: memory that grows over a run (fragmentation under changing lengths is in the
range, not in the likely value), and kernels that torch.compile would fuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loracle.domain.estimate import MemoryEstimate, Range, Term
from loracle.domain.gpu import Gpu
from loracle.domain.setup import TrainingSetup
from loracle.estimate import params
from loracle.estimate.decoder.parts import head_profile, layer_profiles
from loracle.estimate.decoder.profile import Point, Profile, value
from loracle.estimate.decoder.tape import KINDS

HOPPER_WORKSPACE, WORKSPACE = 32 << 20, 8320 << 10  # cuBLAS, per thread that runs a gemm
CONTEXT_BYTES = 600 << 20  # where no card is given


@dataclass(frozen=True, slots=True)
class _Moment:
    """A candidate for the peak: its phase, its bytes, and what they are."""

    phase: str
    num_bytes: float
    parts: Mapping[str, float]


def estimate_memory(setup: TrainingSetup, gpu: Gpu | None = None) -> MemoryEstimate:
    """Peak memory of one process training `setup`, on `gpu` or on an Ampere-like card.

    Raises UnsupportedModel (E033) for a model without a layer law.
    """
    residents = _residents(setup)
    moments = _moments(setup, _capability(gpu), residents)
    peak = max(moments, key=lambda moment: moment.num_bytes)
    allocated = peak.num_bytes
    moving = allocated - sum(residents.values())
    slack = moving * (0.35 if setup.gradient_checkpointing else 0.035)
    reserved = allocated + slack
    _, managed = params.optimizer_bytes(setup)
    context = gpu.context_bytes if gpu else CONTEXT_BYTES
    return MemoryEstimate(
        engine="formula",
        model_bytes=int(residents["base"] + residents["adapters"]),
        allocated_bytes=Range.around(allocated, 0.02, 0.02),
        reserved_bytes=Range.around(reserved, 0.05, 0.05),
        device_bytes=Range.around(reserved + context + managed, 0.05, 0.05),
        peak_phase=peak.phase,
        terms=tuple(Term(f"memory.{name}", size) for name, size in peak.parts.items() if size),
        trainable_params=params.trainable_params(setup),
    )


def _capability(gpu: Gpu | None) -> tuple[int, int]:
    return gpu.compute_capability if gpu else (8, 0)


def _residents(setup: TrainingSetup) -> dict[str, float]:
    """What is there throughout the step."""
    on_card, _ = params.optimizer_bytes(setup)
    shards = setup.num_gpus if setup.parallel == "fsdp" else 1
    quantised, rest = params.quantised_bytes(setup), params.unquantised_bytes(setup)
    return {
        "base": (quantised + rest) / shards,
        "adapters": params.adapter_bytes(setup) / shards,
        "optimizer": on_card / shards,
        "batch": 3 * 8 * setup.micro_step_tokens,
    }


def _moments(
    setup: TrainingSetup, capability: tuple[int, int], residents: Mapping[str, float]
) -> list[_Moment]:
    tokens, positions = setup.micro_step_tokens, setup.seq_len
    kinds, order = layer_profiles(setup, capability)
    head = head_profile(setup, capability)
    workspace = HOPPER_WORKSPACE if capability[0] in (9, 10) else WORKSPACE
    fixed = {**residents, "workspace": 2.0 * workspace}
    every = float(params.gradient_bytes(setup))
    before = every if setup.grad_accum > 1 else 0.0

    def size(profile: Profile, name: str) -> float:
        return value(getattr(profile, name), tokens, positions)

    kept = [size(profile, "kept") for profile in kinds]
    casts = sum(size(kinds[kind], "casts") for kind in order)
    grads = [size(profile, "gradients") for profile in kinds]
    all_kept = sum(kept[kind] for kind in order)
    moments = [
        _moment("forward", fixed, before, all_kept, casts, point, tokens, positions)
        for point in head.forward
    ]
    moments += [
        _moment("backward", fixed, before, all_kept, 0.0, point, tokens, positions)
        for point in head.backward
    ]
    above = size(head, "gradients")
    below = all_kept
    last_seen: set[int] = set()
    first_of = {kind: order.index(kind) for kind in set(order)}
    for at in range(len(order) - 1, -1, -1):
        kind = order[at]
        below -= kept[kind]
        if kind not in last_seen or at == first_of[kind]:
            last_seen.add(kind)
            moments += [
                _moment("backward", fixed, before or above, below, 0.0, point, tokens, positions)
                for point in kinds[kind].backward
            ]
        above += grads[kind]
    moments.append(_optimizer_step(setup, fixed, every))
    return moments


def _moment(
    phase: str, fixed: Mapping[str, float], gradients: float, kept: float, casts: float,
    point: Point, tokens: float, positions: float,
) -> _Moment:  # fmt: skip
    parts = dict(fixed)
    by_kind = {kind: value(one, tokens, positions) for kind, one in zip(KINDS, point, strict=True)}
    parts["gradients"] = gradients + by_kind["gradient"]
    parts["saved"] = kept
    parts["working"] = by_kind["activation"]
    parts["dequant"] = by_kind["dequant"]
    parts["logits"] = by_kind["logits"]
    parts["casts"] = casts + by_kind["cast"]
    return _Moment(phase, sum(parts.values()), parts)


def _optimizer_step(setup: TrainingSetup, fixed: Mapping[str, float], gradients: float) -> _Moment:
    """Gradients in full, and foreach AdamW's square roots of the second moments."""
    parts = dict(fixed)
    parts["gradients"] = gradients
    if setup.optimizer == "adamw_torch":
        parts["optimizer_scratch"] = gradients
    return _Moment("optimizer", sum(parts.values()), parts)
