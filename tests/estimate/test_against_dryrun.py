"""The formula against the dry run, for every catalog model at three settings.

Slow: a few seconds each. A slice of the models is chosen with LORACLE_SLICE=3/8.
"""

import json
import os
from pathlib import Path

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.errors import EngineError, UnsupportedModel
from loracle.estimate.memory import estimate_memory

pytestmark = pytest.mark.slow

COUNTED = Path(__file__).parents[1] / "catalog" / "data" / "counted_models.jsonl"
SETTINGS = {
    "ours": {"seq_len": 2048, "micro_batch": 2},
    "upcast": {
        "stack": "hf-trainer", "kbit_upcast": True, "seq_len": 1024,
        "lora": LoraSetup(targets="attention", dropout=0.05, dtype="float32"),
    },
    "kept": {
        "method": "lora", "quant": None, "stack": "trl", "gradient_checkpointing": False,
        "seq_len": 1024, "optimizer": "adamw_torch",
    },
}  # fmt: skip
# transformers offers these only with eager attention.
EAGER_ONLY = {"mpt", "gpt_oss", "bloom"}


def chosen():
    rows = [json.loads(line) for line in COUNTED.read_text().splitlines()]
    rows = [row for row in rows if row["buildable"]]
    part, _, parts = os.environ.get("LORACLE_SLICE", "1/1").partition("/")
    return rows[int(part) - 1 :: int(parts)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", chosen(), ids=lambda model: model["id"])
def test_within_five_per_cent(model, setting):
    pytest.importorskip("torch")
    from loracle.planner.engines import dry_run_engine

    shape = shape_from_config(model["config"], id=model["id"])
    setup = TrainingSetup(model=shape, **SETTINGS[setting])
    lora = setup.lora or LoraSetup()
    setup = setup.with_changes(
        lora=LoraSetup(targets=shape.targets(lora.targets), dropout=lora.dropout, dtype=lora.dtype)
    )
    if shape.model_type in EAGER_ONLY:
        setup = setup.with_changes(attention="eager")
    gpu = find_gpu("H200 SXM 141GB")
    try:
        exact = dry_run_engine(setup, gpu).memory
    except EngineError as error:
        pytest.skip(f"the dry run refuses: {error}")
    try:
        formula = estimate_memory(setup, gpu)
    except UnsupportedModel as error:
        pytest.skip(f"the formula refuses: {error}")
    assert formula.allocated_bytes.likely == pytest.approx(exact.allocated_bytes.likely, rel=0.05)
    assert formula.reserved_bytes.likely == pytest.approx(exact.reserved_bytes.likely, rel=0.12)
