"""Hold a merged folder against the unmerged model, on real prompts, before anyone trusts it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from loracle.catalog.datasets import Sample
from loracle.errors import RunError
from loracle.jobs.evaluate.answers import (
    Item,
    batches,
    make_items,
    refuse_unknown_ids,
    token_losses,
)
from loracle.jobs.evaluate.fidelity import Fidelity, capture, choose_groups, compare
from loracle.jobs.evaluate.subjects import (
    Loaded,
    Subject,
    choose_device,
    compute_dtype,
    loaded,
    short_memory,
)
from loracle.jobs.train.model import load_tokenizer, special_tokens

BATCH = 4
WORST_KL, WORST_TOP1 = 0.1, 0.9  # beyond this a merge is broken, not rounded
_HEADROOM = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How close a merged model is to the unmerged one; losses are nats a token."""

    prompts: int
    fidelity: Fidelity
    adapter_loss: float
    merged_loss: float

    @property
    def is_broken(self) -> bool:
        """Whether this is no longer the same model by any reading."""
        # asked for closeness, so that a KL that is no number counts as broken
        return not (self.fidelity.kl <= WORST_KL and self.fidelity.top1 >= WORST_TOP1)


@dataclass(slots=True)
class Reference:
    """The unmerged model's distributions and loss on the prompts, taken once."""

    items: list[Item]
    groups: list[list[Item]]
    log_probs: dict[int, object]
    loss: float
    pad_id: int
    dtype: str


def reference_of(
    base: str, adapter: Path, *, quant: str | None, dtype: str, tokenizer: str,
    samples: Sequence[Sample], max_tokens: int = 1024,
) -> Reference:  # fmt: skip
    """What the unmerged model says: base as training held it, with the adapter on top.

    Raises MachineError E055 where the card's memory is short, as `verify` does.
    """
    device = choose_device()
    chosen = compute_dtype(device, dtype)
    words = load_tokenizer(tokenizer)
    items = [one for one in make_items(samples, words, max_tokens=max_tokens) if one.num_labels]
    groups = choose_groups(batches(items, BATCH), len(words))
    pad = special_tokens(words, None).pad_token_id
    refuse_unknown_ids(items, pad, [base], tokenizer)
    subject = Subject(id="adapter", weights=base, adapter=adapter, quant=quant, dtype=chosen)
    with _short_memory(), loaded([subject], device) as holder, holder.use(subject) as model:
        log_probs = capture(model, groups, pad)
        loss = _loss(holder, subject, groups, pad)
    return Reference(items, groups, dict(log_probs), loss, pad, chosen)


def verify(folder: Path, reference: Reference) -> Verification:
    """Load a merged folder and compare it with the reference."""
    device = choose_device()
    subject = Subject(id="merged", weights=str(folder), dtype=reference.dtype)
    with _short_memory(), loaded([subject], device) as holder, holder.use(subject) as model:
        found = compare(model, reference.groups, reference.log_probs, reference.pad_id)  # type: ignore[arg-type]
        loss = _loss(holder, subject, reference.groups, reference.pad_id)
    return Verification(
        prompts=sum(len(group) for group in reference.groups),
        fidelity=found,
        adapter_loss=reference.loss,
        merged_loss=loss,
    )


def refuse_broken(folder: Path, verification: Verification) -> None:
    """Raise RunError E082 for a merged model, to lie at `folder`, that is another one."""
    if not verification.is_broken:
        return
    raise RunError(
        "error.merge.verify_failed",
        code="E082",
        top1=f"{verification.fidelity.top1:.1%}",
        kl=f"{verification.fidelity.kl:.3g}",
        path=str(folder),
    )


def memory_shortage(num_bytes: int, dtype: str) -> tuple[int, int] | None:
    """(needed, free) bytes where one copy of the model does not fit beside what runs; else None."""
    import torch

    device = choose_device()
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        need = num_bytes * _HEADROOM
    else:
        free = _available()
        need = num_bytes * (2 if compute_dtype(device, dtype) == "float32" else 1) * _HEADROOM
    return (round(need), free) if need > free else None


def _short_memory() -> AbstractContextManager[None]:
    return short_memory("error.merge.memory", hint="hint.merge.no_verify")


def _loss(holder: Loaded, subject: Subject, groups: list[list[Item]], pad_id: int) -> float:
    import torch

    total, labels = 0.0, 0
    with torch.inference_mode(), holder.use(subject) as model:
        for group in groups:
            total += sum(token_losses(model, group, pad_id))
            labels += sum(item.num_labels for item in group)
    return total / labels


def _available() -> int:
    """Memory that a new process could have, as Linux estimates it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
