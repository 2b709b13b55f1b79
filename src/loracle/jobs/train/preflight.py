"""Everything that can fail later fails now: precision, memory, disk, what the data loses."""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from loracle.domain.estimate import Range
from loracle.domain.setup import TrainingSetup
from loracle.errors import MachineError, RunError
from loracle.estimate.storage import checkpoint_bytes, merged_bytes
from loracle.jobs.train.data import Counts
from loracle.units import GB, GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the user should know before the first step: message id `check.<id>` and values."""

    id: str
    values: dict[str, object]


def for_capability(setup: TrainingSetup, capability: tuple[int, int] | None) -> TrainingSetup:
    """The setup in a precision that the card computes; None stands for a CPU.

    Cards before 8.0 emulate bf16 (`is_bf16_supported` says yes to them), many times slower. They
    train in fp16, whose loss scaling needs fp32 adapters.
    """
    if capability is None or capability >= (8, 0) or setup.base_dtype != "bfloat16":
        return setup
    return setup.with_changes(
        base_dtype="float16",
        autocast="float16",
        lora=setup.lora and replace(setup.lora, dtype="float32"),
        attention="sdpa" if setup.attention == "flash_attention_2" else setup.attention,
    )


def check_memory(needed: Range, free_bytes: int, *, adapts: bool) -> list[Finding]:
    """The plan's device bytes against what is really free on the card.

    Raises MachineError E052 where even the likely value does not fit, unless the run may adapt.
    """
    values: dict[str, object] = {
        "likely_gib": round(needed.likely / GIB, 1),
        "high_gib": round(needed.high / GIB, 1),
        "free_gib": round(free_bytes / GIB, 1),
    }
    if needed.likely > free_bytes and not adapts:
        raise MachineError(
            "error.train.memory", code="E052",
            hints=("hint.train.adapt", "hint.train.smaller"), **values,
        )  # fmt: skip
    if needed.high > free_bytes:
        return [Finding("memory_tight", values)]
    return []


def check_disk(folder: Path, setup: TrainingSetup, keep: int, *, merges: bool) -> None:
    """Room for the kept checkpoints, one being written, and the merged model, where they will lie.

    Raises MachineError E053 where it is short, E054 where the folder cannot be written.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        raise MachineError(
            "error.train.not_writable", code="E054", path=str(folder),
            cause=error.strerror or str(error),
        ) from error  # fmt: skip
    one = checkpoint_bytes(setup)
    merged = merged_bytes(setup.model) if merges and setup.lora is not None else 0
    needed = (keep + 2) * one + merged  # kept, best, and the one that is being written
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineError(
            "error.train.disk", code="E053", hints=("hint.train.keep_fewer", "hint.train.no_merge"),
            path=str(folder), needed_gb=round(needed / GB, 1), free_gb=round(free / GB, 1),
            checkpoint_gb=round(one / GB, 2), merged_gb=round(merged / GB, 1), keep=keep,
        )  # fmt: skip


def check_counts(counts: Counts, seq_len: int) -> list[Finding]:
    """What the data will lose, and whether the model can learn to stop.

    Raises RunError E063 where no whole sample ends in a stop token.
    """
    findings = []
    whole = counts.samples + counts.unlabelled - counts.cut
    if whole > 0 and counts.unended >= whole:
        raise RunError("error.train.never_stops", code="E063", hint="hint.train.never_stops")
    if counts.unended:
        findings.append(Finding("unended", {"samples": counts.unended}))
    if counts.unlabelled:
        findings.append(Finding("unlabelled", {"samples": counts.unlabelled, "seq_len": seq_len}))
    if counts.cut:
        findings.append(Finding("cut", {"samples": counts.cut, "seq_len": seq_len}))
    return findings
