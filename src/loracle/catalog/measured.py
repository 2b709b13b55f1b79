"""Measured runs (`loracle.measured-run/1`): what real cards showed, read from JSON Lines.

They are what the laws are judged on: `loracle validate` reads a user's own file, the tests read
the shipped ones. A row nests the model (its config.json), the adapter and the readings; in memory
it is one flat `MeasuredRun`. Rows carry more keys as the project grows, so unknown keys pass.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loracle.catalog.shapes import shape_from_config
from loracle.domain.measured import SCHEMA, MeasuredRun
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.errors import InputError

FOLDER = Path(__file__).parent / "data" / "measured"


def read_runs(path: Path | str) -> tuple[MeasuredRun, ...]:
    """Every run of a JSON Lines file, in order; blank lines are skipped.

    Raises InputError: E010 where the file is missing, empty or no UTF-8 text, E018 with line
    (and column or key) where a row is broken.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError("error.missing_file", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("error.runs.encoding", path=str(path), offset=error.start) from error
    runs = tuple(
        _run(line, str(path), number)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    )
    if not runs:
        raise InputError("error.runs.empty", path=str(path))
    return runs


@cache
def shipped_runs() -> tuple[MeasuredRun, ...]:
    """The runs that come with loracle, file by file in the order of their names."""
    return tuple(run for path in sorted(FOLDER.glob("*.jsonl")) for run in read_runs(path))


def write_run(run: MeasuredRun, path: Path | str) -> None:
    """Append one run to a JSON Lines file."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(run_document(run), ensure_ascii=False) + "\n")


def run_document(run: MeasuredRun) -> dict[str, object]:
    """The row that `read_runs` reads back as the same run."""
    document: dict[str, object] = {
        "schema": SCHEMA,
        "id": run.id,
        "model": {"hub_id": run.hub_id, "config": dict(run.config)},
        **{name: getattr(run, name) for name in _TOP},
        "lora": None
        if run.lora_rank is None
        else {
            "rank": run.lora_rank,
            "targets": run.lora_targets
            if isinstance(run.lora_targets, str)
            else list(run.lora_targets or ()),
            "dropout": run.lora_dropout,
            "dtype": run.lora_dtype,
        },
        "measured": {name: getattr(run, name) for name in _Readings.model_fields},
        "software": dict(run.software),
        "source": run.source,
    }
    return document


def run_of(setup: TrainingSetup, **readings: Any) -> MeasuredRun:
    """The run of a setup with what was read of it: the way back of `setup_of`."""
    lora = setup.lora
    return MeasuredRun(
        hub_id=setup.model.id,
        config=setup.model.config,
        method=setup.method,
        quant=setup.quant,
        stack=setup.stack,
        kbit_upcast=setup.kbit_upcast,
        base_dtype=setup.base_dtype,
        autocast=setup.autocast,
        seq_len=setup.seq_len,
        micro_batch=setup.micro_batch,
        grad_accum=setup.grad_accum,
        gradient_checkpointing=setup.gradient_checkpointing,
        checkpoint_every=setup.checkpoint_every,
        attention=setup.attention,
        optimizer=setup.optimizer,
        packing=setup.packing,
        parallel=setup.parallel if setup.num_gpus > 1 else "ddp",  # says nothing of one card
        num_gpus=setup.num_gpus,
        lora_rank=lora.rank if lora else None,
        lora_targets=lora.targets if lora else None,
        lora_dropout=lora.dropout if lora else 0.0,
        lora_dtype=lora.dtype if lora else None,
        **readings,
    )


def setup_of(run: MeasuredRun) -> TrainingSetup:
    """The question that the run answers. Raises UnsupportedModel (E033) from the shape."""
    lora = None
    if run.lora_rank is not None:
        lora = LoraSetup(
            rank=run.lora_rank,
            alpha=2 * run.lora_rank,
            targets=run.lora_targets or "all-linear",
            dropout=run.lora_dropout,
            dtype=run.lora_dtype or "float32",
        )
    return TrainingSetup(
        model=shape_from_config(run.config, id=run.hub_id),
        method=run.method,
        quant=run.quant,
        stack=run.stack,
        kbit_upcast=run.kbit_upcast,
        base_dtype=run.base_dtype,
        autocast=run.autocast,
        seq_len=run.seq_len,
        micro_batch=run.micro_batch,
        grad_accum=run.grad_accum,
        gradient_checkpointing=run.gradient_checkpointing,
        checkpoint_every=run.checkpoint_every,
        attention=run.attention,
        optimizer=run.optimizer,
        lora=lora,
        packing=run.packing,
        num_gpus=run.num_gpus,
        parallel=run.parallel if run.num_gpus > 1 else "none",
        eval_micro_batch=run.eval_micro_batch,
    )


class _Row(BaseModel):
    """Base of the parts of a row: unknown keys pass."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class _Model(_Row):
    hub_id: str = ""
    config: dict[str, Any]


class _Lora(_Row):
    rank: int = Field(gt=0)
    targets: str | list[str]
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dtype: str | None = None


class _Readings(_Row):
    model_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    context_bytes: int | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    step_spread: float | None = None
    power_w: float | None = None


class _Document(_Row):
    schema_: str = Field(default=SCHEMA, alias="schema", pattern=f"^{SCHEMA}$")
    id: str
    model: _Model
    method: str
    quant: str | None = None
    stack: str
    kbit_upcast: bool = False
    base_dtype: str = "bfloat16"
    autocast: str | None = "bfloat16"
    seq_len: int = Field(gt=0)
    micro_batch: int = Field(gt=0)
    grad_accum: int = Field(default=1, gt=0)
    gradient_checkpointing: bool
    checkpoint_every: int = Field(default=1, gt=0)
    attention: str = "sdpa"
    optimizer: str
    packing: bool = False
    parallel: str = "ddp"  # what several cards do where the row does not say
    lora: _Lora | None = None
    gpu: str
    num_gpus: int = Field(default=1, gt=0)
    memory_cap_bytes: int | None = None
    fits: bool = True
    eval_micro_batch: int | None = None
    measured: _Readings = _Readings()
    software: dict[str, str] = {}
    source: str = ""


_NESTED = ("schema_", "id", "model", "lora", "measured", "software", "source")
_TOP = tuple(name for name in _Document.model_fields if name not in _NESTED)


def _run(line: str, path: str, number: int) -> MeasuredRun:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            "error.runs.json", code="E018", hint="hint.runs.json",
            path=path, line=number, column=error.colno, reason=error.msg,
        ) from error  # fmt: skip
    try:
        row = _Document.model_validate(raw)
    except ValidationError as error:
        raise _broken_row(error, path, number) from error
    lora = row.lora
    fields: Mapping[str, Any] = {name: getattr(row, name) for name in _TOP}
    return MeasuredRun(
        id=row.id,
        hub_id=row.model.hub_id,
        config=row.model.config,
        **fields,
        lora_rank=lora.rank if lora else None,
        lora_targets=(tuple(lora.targets) if isinstance(lora.targets, list) else lora.targets)
        if lora
        else None,
        lora_dropout=lora.dropout if lora else 0.0,
        lora_dtype=lora.dtype if lora else None,
        **dict(row.measured),
        software=row.software,
        source=row.source,
    )


def _broken_row(error: ValidationError, path: str, number: int) -> InputError:
    fault = error.errors(include_url=False)[0]
    return InputError(
        "error.runs.row", code="E018", hint="hint.runs.row",
        path=path, line=number, key=".".join(str(part) for part in fault["loc"]) or "(row)",
        reason=fault["msg"], others=error.error_count() - 1,
    )  # fmt: skip
