"""Predict the runs of a lab list without a GPU: write the file before the runs are measured.

python benchmarks/lab/predict.py configs.json predictions.jsonl

Memory and verdict are the dry run's; beside them its speed and the formula's figures, for the
models that the formula has a law for.
"""

import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

from measure_run import DEFAULTS

from loracle.catalog.gpus import find_gpu
from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.dryrun.allocator import AllocatorSettings
from loracle.dryrun.replay import replay
from loracle.dryrun.trace import software, trace
from loracle.errors import LoracleError
from loracle.estimate.memory import estimate_memory
from loracle.estimate.pricing import price_trace
from loracle.estimate.speed import estimate_speed

# the bare CUDA context on the H200 here
H200_CONTEXT = 1_295_974_400


def setup_of(c: dict) -> TrainingSetup:
    """The setup that a lab config asks for."""
    quantised = c["method"] == "qlora"
    narrow = c["stack"] == "trl" and quantised
    lora = None if c["method"] == "full" else LoraSetup(
        rank=c["rank"], alpha=2 * c["rank"], targets=c["targets"], dropout=c["dropout"],
        dtype="bfloat16" if narrow else "float32",
    )  # fmt: skip
    return TrainingSetup(
        model=SimpleNamespace(config=c["config"], id=c["hub_id"]), method=c["method"],
        quant="nf4-double" if quantised else None, stack=c["stack"],
        kbit_upcast=c["kbit_upcast"], seq_len=c["seq_len"], micro_batch=c["micro_batch"],
        grad_accum=c["grad_accum"], gradient_checkpointing=c["gradient_checkpointing"],
        checkpoint_every=c["checkpoint_every"], attention=c["attention"],
        optimizer=c["optimizer"], lora=lora, eval_micro_batch=c["eval_micro_batch"],
    )  # fmt: skip


def predict(c: dict) -> dict:
    """One prediction."""
    start = time.time()
    made = trace(setup_of(c))
    cap = c["cap_gib"] and int(c["cap_gib"] * 2**30)
    settings = AllocatorSettings(
        expandable_segments="expandable_segments:True" in (c["alloc_conf"] or "")
    )
    memory = replay(made, context_bytes=H200_CONTEXT, cap_bytes=cap, settings=settings)
    return {
        "id": c["id"], "engine": "dryrun", "fits": memory.fits,
        "model_bytes": memory.model_bytes, "peak_allocated_bytes": memory.peak_allocated,
        "peak_reserved_bytes": memory.peak_reserved, "device_used_bytes": memory.peak_device,
        "peak_phase": memory.peak_phase, "retries": memory.num_retries,
        "trainable_params": made.trainable_params, "seconds": round(time.time() - start, 2),
        "software": software(), **with_shape(c, made),
    }  # fmt: skip


def with_shape(c: dict, made: object) -> dict:
    """What needs the model's shape: the price of the trace, and the formula's figures."""
    try:
        setup = replace(setup_of(c), model=shape_from_config(c["config"], c["hub_id"]))
        gpu = find_gpu("H200 SXM 141GB")
        memory, speed = estimate_memory(setup, gpu), estimate_speed(setup, gpu)
        traced = price_trace(made, setup, gpu)
    except LoracleError as error:
        return {"formula": {"refused": error.code}}
    return {
        "tokens_per_s": round(traced.tokens_per_s.likely, 1),
        "formula": {
            "peak_allocated_bytes": round(memory.allocated_bytes.likely),
            "peak_reserved_bytes": round(memory.reserved_bytes.likely),
            "device_used_bytes": round(memory.device_bytes.likely),
            "tokens_per_s": round(speed.tokens_per_s.likely, 1),
        },
    }


def main() -> None:
    """Predict every config of the list."""
    with open(sys.argv[2], "w") as file:
        for c in json.load(open(sys.argv[1])):
            made = predict({**DEFAULTS, **c})
            file.write(json.dumps(made) + "\n")
            gib = {k: round(v / 2**30, 3) for k, v in made.items() if k.endswith("_bytes")}
            print(made["id"], "fits", made["fits"], gib, made["peak_phase"], made["seconds"])


if __name__ == "__main__":
    main()
