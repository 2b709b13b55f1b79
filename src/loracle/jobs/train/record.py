"""The run as a measured run (`loracle.measured-run/1`), so that estimates can be judged on it."""

import json
from statistics import median

from loracle.catalog.measured import run_document, run_of
from loracle.domain.gpu import Gpu
from loracle.domain.measured import MeasuredRun
from loracle.domain.setup import TrainingSetup
from loracle.jobs.runs import RunFolder, write_whole
from loracle.jobs.train.facts import versions

WARM_UP_STEPS = 3


def write_record(
    run: RunFolder, setup: TrainingSetup, gpu: Gpu | None, model_bytes: int | None
) -> None:
    """Write `record.json` as one line, which `loracle validate` reads as it is.

    Readings come from the step events of the last start; speed is the median after warm-up.
    """
    document = run_document(_measured(run, setup, gpu, model_bytes))
    write_whole(run.record, (json.dumps(document, ensure_ascii=False) + "\n").encode())


def _measured(
    run: RunFolder, setup: TrainingSetup, gpu: Gpu | None, model_bytes: int | None
) -> MeasuredRun:
    steps = _last_start(run)
    counted = steps[WARM_UP_STEPS:] or steps
    seconds = [float(str(event["step_s"])) for event in counted]
    speeds = [float(str(event["tokens_per_s"])) for event in counted]
    peak = _largest(steps, "peak_bytes")
    reserved = _largest(steps, "reserved_bytes")
    device = _largest(steps, "device_bytes")
    power = [float(str(event["power_w"])) for event in counted if "power_w" in event]
    return run_of(
        setup,
        id=run.name,
        gpu=gpu.name if gpu else "cpu",
        model_bytes=model_bytes,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        device_used_bytes=device,
        context_bytes=device - reserved if device and reserved else None,
        tokens_per_s=median(speeds) if speeds else None,
        step_s=median(seconds) if seconds else None,
        step_spread=(max(seconds) - min(seconds)) / median(seconds) if seconds else None,
        power_w=sum(power) / len(power) if power else None,
        eval_micro_batch=setup.eval_micro_batch,
        software=versions(),
        source="loracle train",
    )


def _last_start(run: RunFolder) -> list[dict[str, object]]:
    """Step events since the last start: an earlier one may have run other settings."""
    steps: list[dict[str, object]] = []
    for event in run.events():
        if event["event"] == "started":
            steps = []
        elif event["event"] == "step":
            steps.append(event)
    return steps


def _largest(steps: list[dict[str, object]], key: str) -> int | None:
    values = [int(str(event[key])) for event in steps if event.get(key) is not None]
    return max(values, default=None)
