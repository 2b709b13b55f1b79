"""Makes the constants of the memory formula's reserved side again, and says what they miss by.

    python benchmarks/memory_calibration.py [--samples 1500] [--out FILE.json]

1. Random setups of the catalog's models (no measured run among them) are run whole on the toy
   autograd and replayed through `estimate/segments.py`, layer by layer, two steps long.
2. The slack that a replay shows is explained by least absolute error from three sizes: the layer's
   forward transients, one copy of the logits, what all layers keep. One law each for checkpointed
   or not, whole logits or tiles. Quantiles of what is left, in shares of the moving part, give the
   half-widths of `estimate/memory_ranges.py`; leave-one-family-out says whether they travel.
3. The measured runs are then predicted, once, and their errors printed: they fit nothing.

Needs numpy beside loracle. Takes about 40 ms a sample on one core.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np

from loracle.catalog.gpus import find_gpu
from loracle.catalog.measured import setup_of, shipped_runs
from loracle.catalog.shapes import shape_from_config
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.errors import LoracleError
from loracle.estimate.decoder.parts import head_profile, layer_profiles
from loracle.estimate.decoder.profile import Profile, value
from loracle.estimate.loading import loading_slack
from loracle.estimate.memory import _Step, estimate_memory
from loracle.estimate.segments import SMALL, Segments

COUNTED = Path(__file__).parents[1] / "tests" / "catalog" / "data" / "counted_models.jsonl"
SIZES = ("forward", "logits", "kept")
MIB = 1 << 20


def replayed_slack(setup: TrainingSetup, capability: tuple[int, int]) -> int:
    """Reserved minus allocated at the peak of two whole steps, activations only."""
    kinds, order = layer_profiles(setup, capability)
    head = head_profile(setup, capability)
    lives = [_numeric(kind, setup) for kind in (*kinds, head)]
    pool = Segments()
    for _ in range(2):
        live: list[dict] = [{} for _ in range(len(order) + 1)]
        for at, kind in enumerate(order):
            _play(pool, lives[kind][0], live[at])
        _play(pool, lives[-1][0], live[-1])
        for at, kind in enumerate(order):
            _play(pool, lives[kind][1], live[at])
        _play(pool, lives[-1][1], live[-1])
        _play(pool, lives[-1][2], live[-1])
        for at in range(len(order) - 1, -1, -1):
            _play(pool, lives[order[at]][2], live[at])
        for one in live:
            for block in one.values():
                pool.free(block)
    return pool.reserved - pool.peak_allocated


def _numeric(profile: Profile, setup: TrainingSetup) -> list[list[tuple[int, int]]]:
    """Births and deaths of large storages in bytes, for forward, end of autocast, backward."""
    out = []
    for part in (profile.lives.forward, profile.lives.uncast, profile.lives.backward):
        sized = []
        for number, size in part:
            num_bytes = int(value(size, setup.micro_step_tokens, setup.seq_len))
            rounded = -(-num_bytes // 512) * 512
            if rounded > SMALL:
                sized.append((number, rounded))
        out.append(sized)
    return out


def _play(pool: Segments, events: list[tuple[int, int]], live: dict) -> None:
    for number, size in events:
        if number >= 0:
            live[number] = pool.malloc(size)
        elif ~number in live:
            pool.free(live.pop(~number))


def random_setup(rng: random.Random, models: list[dict]) -> tuple[TrainingSetup, tuple[int, int]]:
    """One of the catalog's models at a setting that somebody might run."""
    model = rng.choice(models)
    shape = shape_from_config(model["config"], id=model["id"])
    stack = rng.choice(["loracle", "hf-trainer", "trl"])
    method = rng.choice(["qlora"] * 4 + ["lora", "full"])
    seq_len = rng.choice([256, 512, 1024, 2048, 4096, 8192])
    lora = LoraSetup(
        rank=rng.choice([8, 16, 32, 64]),
        targets=rng.choice(["attention", "all-linear"]),
        dropout=rng.choice([0, 0, 0.05]),
        dtype="float32" if stack == "hf-trainer" else "bfloat16",
    )
    setup = TrainingSetup(
        model=shape,
        method=method,
        quant="nf4-double" if method == "qlora" else None,
        stack=stack,
        kbit_upcast=stack == "hf-trainer" and method == "qlora" and rng.random() < 0.7,
        seq_len=seq_len,
        micro_batch=rng.choice([1, 1, 2, 4, 8, 16]),
        gradient_checkpointing=rng.random() < 0.7,
        attention="eager" if seq_len <= 1024 and rng.random() < 0.15 else "sdpa",
        lora=None if method == "full" else lora,
    )
    return setup, rng.choice([(8, 0), (9, 0)])


def sensible(setup: TrainingSetup) -> bool:
    """Not larger than what anybody would start on one card."""
    tokens = setup.micro_step_tokens
    if setup.method == "full" and setup.model.num_params > 9e9:
        return False
    return tokens <= (32768 if setup.gradient_checkpointing else 8192)


def sample(count: int, seed: int) -> list[dict]:
    """Replayed slack and the sizes that shall explain it."""
    models = [json.loads(line) for line in COUNTED.read_text().splitlines()]
    rng, rows = random.Random(seed), []
    while len(rows) < count:
        setup, capability = random_setup(rng, models)
        if not sensible(setup):
            continue
        try:
            slack = replayed_slack(setup, capability)
            step = _Step(setup, capability)
        except LoracleError:
            continue
        shape = step.segments()
        rows.append({
            "family": setup.model.model_type,
            "law": (shape.checkpointed, shape.logits > 0),
            "sizes": [shape.forward, shape.logits, shape.kept, float(MIB)],
            "slack": float(slack),
            "moving": max(sum(p.values()) for name, p in step.moments() if name != "optimizer"),
            "whole": setup.model.num_params * 0.6,
        })  # fmt: skip
    return rows


def least_absolute(rows: list[dict]) -> np.ndarray:
    """Shares that make the sum of absolute errors, relative to the whole, least."""
    weight = np.array([1 / (row["moving"] + row["whole"]) for row in rows])
    sizes = np.array([row["sizes"] for row in rows]) * weight[:, None]
    target = np.array([row["slack"] for row in rows]) * weight
    shares = np.linalg.lstsq(sizes, target, rcond=None)[0]
    for _ in range(60):
        pull = 1 / np.sqrt(np.abs(target - sizes @ shares) + 1e-4)
        shares = np.linalg.lstsq(sizes * pull[:, None], target * pull, rcond=None)[0]
    return np.maximum(shares, 0)


def missed(rows: list[dict], shares: np.ndarray) -> np.ndarray:
    """(replayed - predicted) / moving."""
    return np.array([
        (row["slack"] - float(np.dot(row["sizes"], shares))) / row["moving"] for row in rows
    ])  # fmt: skip


def study(rows: list[dict]) -> dict:
    """Shares and residual quantiles of each law, in and out of family."""
    found = {}
    for law in ((True, False), (True, True), (False, False), (False, True)):
        mine = [row for row in rows if row["law"] == law]
        if len(mine) < 30:
            continue
        out = np.concatenate([
            missed(
                [row for row in mine if row["family"] == family],
                least_absolute([row for row in mine if row["family"] != family]),
            )
            for family in sorted({row["family"] for row in mine})
        ])  # fmt: skip
        shares = least_absolute(mine)
        found["checkpointed={} logits={}".format(*law)] = {
            "samples": len(mine),
            "shares": dict(zip((*SIZES, "mib"), np.round(shares, 3).tolist(), strict=True)),
            "residual_of_moving_5_50_95": np.round(
                np.quantile(missed(mine, shares), [0.05, 0.5, 0.95]), 3
            ).tolist(),
            "left_out_family_5_50_95": np.round(np.quantile(out, [0.05, 0.5, 0.95]), 3).tolist(),
        }
    return found


def measured() -> dict:
    """The measured runs, predicted: per cent, and the runs outside of their range."""
    card, errors, exact, outside = find_gpu("H200 SXM 141GB"), [], [], []
    for run in shipped_runs():
        if not run.peak_reserved_bytes or not run.peak_allocated_bytes:
            continue
        setup = setup_of(run)
        reserved = estimate_memory(setup, card).reserved_bytes
        errors.append(100 * (reserved.likely / run.peak_reserved_bytes - 1))
        whole = run.peak_allocated_bytes + loading_slack(setup) + replayed_slack(setup, (9, 0))
        exact.append(100 * (whole / run.peak_reserved_bytes - 1))
        if not reserved.low <= run.peak_reserved_bytes <= reserved.high:
            outside.append(run.id)
    return {
        "runs": len(errors),
        "formula_mean_abs_pct": round(float(np.mean(np.abs(errors))), 2),
        "formula_max_abs_pct": round(float(np.max(np.abs(errors))), 2),
        "replay_mean_abs_pct": round(float(np.mean(np.abs(exact))), 2),
        "replay_max_abs_pct": round(float(np.max(np.abs(exact))), 2),
        "outside_range": outside,
    }


def main() -> None:
    """Sample, explain, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = sample(options.samples, options.seed)
    result = {
        "command": f"python benchmarks/memory_calibration.py --samples {options.samples}",
        "laws": study(rows),
        "measured_runs": measured(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
