"""Out of memory: what can be turned without changing what is learned.

The rungs are those of claim A-T2 that keep the effective batch and every sample: a smaller
evaluation batch, a smaller micro-batch with more accumulation, more recomputation. A shorter
sequence, a smaller rank or fewer targets would train something else; they are named as advice and
never taken.
"""

from dataclasses import dataclass

from loracle.domain.setup import TrainingSetup

ADVICE = ("hint.train.oom_seq_len", "hint.train.oom_rank", "hint.train.oom_targets",
          "hint.train.oom_card")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rung:
    """One change of the setup: which fields, from what, to what."""

    name: str  # eval_batch, micro_batch, checkpointing
    setup: TrainingSetup
    changes: dict[str, tuple[object, object]]


def next_rung(setup: TrainingSetup, phase: str) -> Rung | None:
    """The next change that lowers the peak of a phase (step, optimizer, evaluation), or None.

    More recomputation comes before a smaller micro-batch only where some layers are not
    recomputed and the micro-batch is 1 already: halving keeps the arithmetic of a step, and costs
    speed only where the card was not full.
    """
    if phase == "evaluation":
        batch = setup.eval_micro_batch or setup.micro_batch
        if batch > 1:
            return _rung("eval_batch", setup, eval_micro_batch=batch // 2)
        return None
    if phase == "optimizer":
        return None
    if setup.micro_batch > 1:
        smaller = next(
            size
            for size in range(setup.micro_batch // 2, 0, -1)
            if (setup.micro_batch * setup.grad_accum) % size == 0
        )
        accum = setup.micro_batch * setup.grad_accum // smaller
        return _rung("micro_batch", setup, micro_batch=smaller, grad_accum=accum)
    if not setup.gradient_checkpointing:
        return _rung("checkpointing", setup, gradient_checkpointing=True, checkpoint_every=1)
    if setup.checkpoint_every > 1:
        return _rung("checkpointing", setup, checkpoint_every=1)
    return None


def _rung(name: str, setup: TrainingSetup, **changes: object) -> Rung:
    before = {key: getattr(setup, key) for key in changes}
    return Rung(
        name,
        setup.with_changes(**changes),
        {key: (before[key], value) for key, value in changes.items()},
    )
