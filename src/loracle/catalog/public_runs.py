"""Speeds that others published, each turned into the setup that it most likely ran.

The speed laws are checked against them, so the mapping from a row's words to a setup is part of
the claim: it is data (`data/public/frameworks.toml`), read row by row here, with the reason where
a row is left out. `throughput.jsonl` counts tokens a second over all cards.
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.catalog.shapes import shape_from_config
from loracle.domain.gpu import Gpu, Node
from loracle.domain.model import ModelShape
from loracle.domain.setup import LoraSetup, TrainingSetup

FOLDER = Path(__file__).parent / "data" / "public"

# Names that fit several forms of a card: rows with NVLink, or of a cloud, ran on the SXM form.
_CARDS = {"A100-80GB": "a100-80gb-sxm", "A100-40GB": "a100-40gb-sxm", "H100-80GB": "h100-80gb-sxm"}
_OVERRIDES = ("kernels", "notes", "several")
_QUANT = (("nf4-dq", "nf4-double"), ("nf4", "nf4"), ("int8", "int8"), ("GPTQ", "gptq4"))
_NODE_LINK_BYTES_PER_S = {"multi-node": 1.2e9, "old board": 3.5e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRun:
    """One published speed. `left_out` holds the reason where it is not judged, else None."""

    index: int  # line in the file, from 0
    model: str  # as printed, like the card
    card: str
    gpu: Gpu
    node: Node | None
    setup: TrainingSetup
    tokens_per_s: float
    quality: str
    framework: str
    source: str
    left_out: str | None = None


@cache
def public_runs() -> tuple[PublicRun, ...]:
    """LoRA and QLoRA rows of quality A and B that print tokens a second, in file order."""
    table = tomllib.loads((FOLDER / "frameworks.toml").read_text("utf-8"))
    lines = (FOLDER / "throughput.jsonl").read_text("utf-8").splitlines()
    rows = ((index, json.loads(line)) for index, line in enumerate(lines))
    return tuple(_run(index, row, table) for index, row in rows if _wanted(row))


def _wanted(row: dict[str, Any]) -> bool:
    return row["quality"] in ("A", "B") and "LoRA" in row["method"] and bool(row["tokens_per_s"])


def _run(index: int, row: dict[str, Any], table: dict[str, Any]) -> PublicRun:
    gpu = find_gpu(_CARDS.get(row["gpu"], row["gpu"]))
    return PublicRun(
        index=index,
        model=row["model"],
        card=row["gpu"],
        gpu=gpu,
        node=_node(row, gpu),
        setup=_setup(row, _habits(row, table)),
        tokens_per_s=float(row["tokens_per_s"]),
        quality=row["quality"],
        framework=row["framework"],
        source=row["source"],
        left_out=next(
            (rule["reason"] for rule in table["left_out"] if rule["text"] in _text(row, rule)),
            None,
        ),
    )


def _text(row: dict[str, Any], rule: dict[str, str]) -> str:
    return row[rule["field"]] or ""


def _habits(row: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    entry = table[row["framework"]]
    habits = {key: value for key, value in entry.items() if key not in _OVERRIDES}
    if row["n_gpus"] > 1:
        habits |= entry.get("several", {})
    for field in ("kernels", "notes"):
        for text, changes in entry.get(field, {}).items():
            if text in (row[field] or ""):
                habits |= changes
    return habits


def _setup(row: dict[str, Any], habits: dict[str, Any]) -> TrainingSetup:
    quant = next((ours for theirs, ours in _QUANT if theirs in row["method"]), None)
    if quant == "gptq4":
        quant = habits.get("gptq", "gptq4")
    targets = habits["targets"]
    autocast = habits.get("autocast", "bfloat16")
    return TrainingSetup(
        model=_shape(row["model"]),
        method="qlora" if quant else "lora",
        quant=quant,
        stack=habits["stack"],
        kbit_upcast=bool(habits.get("kbit_upcast")) and quant is not None,
        autocast=None if autocast == "none" else autocast,
        seq_len=row["seq"] or 512,
        micro_batch=row["batch"] or 1,
        grad_accum=habits.get("grad_accum", 1),
        gradient_checkpointing=(
            habits.get("recompute", True) if row["grad_ckpt"] is None else row["grad_ckpt"]
        ),
        attention=habits["attention"],
        optimizer=habits.get("optimizer", "adamw_torch"),
        lora=LoraSetup(
            rank=habits["rank"],
            targets=targets if isinstance(targets, str) else tuple(targets),
            dropout=habits.get("dropout", 0.0),
            dtype=habits.get("adapter_dtype", "float32"),
        ),
        num_gpus=row["n_gpus"],
        parallel=habits.get("parallel", "ddp") if row["n_gpus"] > 1 else "none",
    )


def _node(row: dict[str, Any], gpu: Gpu) -> Node | None:
    if row["n_gpus"] == 1:
        return None
    link = row["interconnect"] or ""
    rate = next((rate for text, rate in _NODE_LINK_BYTES_PER_S.items() if text in link), None)
    return Node(gpu_id=gpu.id, num_gpus=row["n_gpus"], link_bytes_per_s=rate)


@cache
def _shape(name: str) -> ModelShape:
    entry = tomllib.loads((FOLDER / "models.toml").read_text("utf-8"))[name]
    if "hub" in entry:
        return find_model(entry["hub"], offline=True)
    return shape_from_config(entry["config"], id=name)
