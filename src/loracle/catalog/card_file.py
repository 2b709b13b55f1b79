"""What a card row must look like: the schema that our own data and a user's file both meet.

A user writes plain numbers with one `source` and `date` for the whole card, in `gpus/NAME.yaml`
of the config folder. Usable memory and CUDA context follow the shipped table's rules where they
are not given. pydantic is imported here only, so that shipped cards load without it.
"""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loracle.domain.gpu import Sourced
from loracle.errors import CatalogError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_OWN = "own"
_RULE = "rule"


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Pcie(_Row):
    """Slot of the card."""

    generation: Annotated[int, Field(ge=1, le=7)]
    lanes: Annotated[int, Field(ge=1, le=16)]


class Profile(_Row):
    """One MIG profile; memory is what a process sees."""

    name: Annotated[str, Field(pattern=r"^\d+g\.\d+gb$")]
    memory_gib: Positive
    sm_fraction: Annotated[float, Field(gt=0, le=1)]


class UserCard(_Row):
    """A card in a user's file. Rates are by dtype: `bfloat16`, `float16`, `float32`."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    name: Annotated[str, Field(min_length=1)]
    aliases: tuple[str, ...] = ()
    memory_mib: Positive
    usable_gib: Positive | None = None
    context_mib: Positive | None = None
    bandwidth_gb_per_s: Positive
    peak_tflops: dict[str, Positive] = {}
    gemm_tflops: Annotated[dict[str, Positive], Field(min_length=1)]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    num_sms: Annotated[int, Field(gt=0)] | None = None
    tdp_watts: Positive | None = None
    pcie: Pcie | None = None
    nvlink_gb_per_s: Positive | None = None
    mig_profiles: tuple[Profile, ...] = ()
    mig_min_driver: str | None = None
    min_cuda: str | None = None
    min_driver: str | None = None
    notes: str = ""
    source: Annotated[str, Field(min_length=1)]
    date: datetime.date
    measured: bool = False


def usable_gib(memory_mib: float) -> float:
    """GiB that a process gets of what nvidia-smi calls the total, where nobody has read it.

    The driver keeps 0.30 GiB and 0.6 %: within 0.7 % on the 26 shipped cards whose CUDA total is
    published, from RTX 3090 to H200, but for V100, RTX 3060 and 3080 (up to 1.4 % too low).
    """
    return memory_mib / 1024 * 0.994 - 0.30


def context_mib(num_sms: int | None) -> float:
    """MiB of a CUDA context: 4 a multiprocessor (0.13 GiB on a T4 to 0.6 on an RTX 5090)."""
    return max(100.0, 4.0 * (num_sms or 128))


def read_card(raw: object, path: Path) -> tuple[dict[str, Any], Mapping[str, Sourced]]:
    """A user's card as a row of the data file, with its sources.

    Raises CatalogError E035 naming the file, the first wrong key and what is wrong with it.
    """
    try:
        card = UserCard.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "-"
        raise CatalogError(
            "error.catalog.card_file",
            code="E035",
            hint="hint.catalog.card_file",
            path=str(path),
            key=where,
            reason=first["msg"],
            count=error.error_count(),
        ) from error
    sources = {
        _OWN: Sourced(card.source, card.date.isoformat(), card.measured),
        _RULE: Sourced("derived by the rule of the shipped table", card.date.isoformat()),
    }
    return _as_row(card), sources


def _as_row(card: UserCard) -> dict[str, Any]:
    row: dict[str, Any] = {
        key: value
        for key, value in card.model_dump(exclude={"source", "date", "measured"}).items()
        if value not in (None, (), {})
    }
    for key in ("memory_mib", "usable_gib", "context_mib", "bandwidth_gb_per_s"):
        if key in row:
            row[key] = [row[key], _OWN]
    for key in ("num_sms", "tdp_watts", "nvlink_gb_per_s"):
        if key in row:
            row[key] = [row[key], _OWN]
    for key in ("peak_tflops", "gemm_tflops"):
        row[key] = {dtype: [rate, _OWN] for dtype, rate in row.get(key, {}).items()}
    row["facts_source"] = row["driver_source"] = _OWN
    row.setdefault("usable_gib", [usable_gib(card.memory_mib), _RULE])
    row.setdefault("context_mib", [context_mib(card.num_sms), _RULE])
    return row
