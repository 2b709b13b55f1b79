"""An 8B shape with random weights on one card: our defaults, TRL's, plain Trainer's, and the plan.

    python benchmarks/train/eight_b.py all [--steps 40] [--long 200] [--out F] [--seconds 420]

Llama-3.1-8B's shape, rank 16 on the attention layers, sequences of 2,048 full-length random
tokens, two a step, gradient checkpointing, paged 8-bit AdamW: the same on every stack. `ours` is
`loracle train` itself, from a file of text to a run folder; `trl` is SFTTrainer and `hf` Trainer
with PEFT's fp32 upcast, both as they come. `ours-auto` leaves checkpointing to the plan. Memory is
torch's peak since the model was loaded. Speed is all tokens after the warm-up (ten steps, or our
first window of held losses) over all the time they took, data and logging included; no stack is
made to wait for the card where it would not. The stacks take turns, the same number of steps each,
because a step this small waits for the host, and the host differs from minute to minute. The
plan's figures were written before the run and are printed beside what was read.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("EIGHT_B_HOME", "/tmp/loracle-eight-b"))
SEQ, MICRO = 2048, 2
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
GIB = 2**30
SHAPE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 8192,
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
WARM_UP = 10
ROWS = (
    "ours-qlora", "trl-qlora", "ours-lora", "trl-lora", "ours-auto-qlora", "hf-qlora", "hf-lora",
)  # fmt: skip
TURNS = (  # "long" runs show the 200 steps; only runs of equal length are compared
    "trl-qlora", "ours-qlora", "trl-lora", "ours-lora", "ours-qlora", "trl-qlora", "ours-lora",
    "trl-lora", "ours-qlora long", "hf-qlora", "hf-lora", "ours-auto-qlora", "trl-qlora",
    "ours-qlora", "ours-lora long",
)  # fmt: skip


def make() -> None:
    """The base model, its word-level tokenizer and a file of texts."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    vocab = {f"w{index}": index for index in range(128000)}
    vocab |= {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|pad|>": 128004}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end_of_text|>", pad_token="<|pad|>",
        model_max_length=8192,
    ).save_pretrained(HOME / "base")  # fmt: skip
    shape = dict(SHAPE)
    if layers := os.environ.get("EIGHT_B_LAYERS"):  # a quick rehearsal on a small machine
        shape |= {"num_hidden_layers": int(layers), "hidden_size": 256, "intermediate_size": 512,
                  "num_attention_heads": 8, "num_key_value_heads": 2}  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("llama", **shape), dtype=torch.bfloat16
        )
    model.generation_config.eos_token_id = 128001
    model.save_pretrained(HOME / "base", max_shard_size="5GB")
    draw = random.Random(0)
    with (HOME / "texts.jsonl").open("w") as file:
        for _ in range(440):
            words = " ".join(f"w{draw.randrange(5, 127000)}" for _ in range(SEQ - 1))
            file.write(json.dumps({"text": words}) + "\n")


def recipe(method: str, steps: int, *, auto: bool = False) -> dict:
    """Our defaults; `auto` leaves the micro-batch and checkpointing to the plan."""
    return {
        "model": str(HOME / "base"), "method": method,
        "data": {"train": str(HOME / "texts.jsonl"), "format": "text"},
        "lora": {"rank": 16, "alpha": 32, "targets": "attention"},
        "training": {
            "seq_len": SEQ, "steps": steps, "effective_batch": MICRO,
            "micro_batch": "auto" if auto else MICRO,
            "gradient_checkpointing": "auto" if auto else True,
            "learning_rate": 1e-4,
        },
        "save": {
            "every_steps": None, "every_minutes": None, "keep": 1, "folder": str(HOME / "runs"),
        },
    }  # fmt: skip


def ours(method: str, steps: int, *, auto: bool = False) -> dict:
    """`loracle train`, and its run folder read back."""
    name = f"{'auto' if auto else 'ours'}-{method}"
    shutil.rmtree(HOME / "runs" / name, ignore_errors=True)
    path = HOME / f"{name}.yaml"
    path.write_text(json.dumps(recipe(method, steps, auto=auto)))  # JSON is YAML
    began = time.time()
    subprocess.run(
        [sys.executable, "-m", "loracle", "train", str(path), "--name", name, "--foreground",
         "--no-merge"],
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    run = HOME / "runs" / name
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    measured = json.loads((run / "record.json").read_text())["measured"]
    started = next(event for event in events if event["event"] == "started")
    loaded = next(event for event in events if event["event"] == "model_loaded")
    return {
        "tokens_per_s": _after_warm_up(events),
        "median_tokens_per_s": measured["tokens_per_s"],
        "peak_allocated_bytes": measured["peak_allocated_bytes"],
        "peak_reserved_bytes": measured["peak_reserved_bytes"],
        "device_used_bytes": measured["device_used_bytes"],
        "step_spread": measured["step_spread"],
        "steps": sum(event["event"] == "step" for event in events),
        "varlen_kernel": loaded["varlen"],
        "gradient_checkpointing": started["gradient_checkpointing"],
        "micro_batch": started["micro_batch"],
        "plan": started["plan"],
        "alarms": [event["alarm"] for event in events if event["event"] == "alarm"],
        "seconds": round(time.time() - began, 1),
    }


def _after_warm_up(events: list[dict]) -> float:
    """Tokens over time since the first window of losses was read; a window's steps share a time."""
    steps = [event for event in events if event["event"] == "step"]
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in steps]
    first = sum(time - times[0] < 0.05 for time in times)
    return (len(steps) - first) * SEQ * MICRO / (times[-1] - times[0])


def theirs(stack: str, method: str, steps: int) -> dict:
    """SFTTrainer or Trainer on the same model and tokens, in this process."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        BitsAndBytesConfig,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Clock(TrainerCallback):
        """Waits for the card twice: at the end of the warm-up and at the end."""

        steps, began, ended = 0, 0.0, 0.0

        def on_step_end(self, *args, **kwargs):
            self.steps += 1
            if self.steps == WARM_UP:
                torch.cuda.synchronize()
                self.began = time.perf_counter()

        def on_train_end(self, *args, **kwargs):
            torch.cuda.synchronize()
            self.ended = time.perf_counter()

    began = time.time()
    quant = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        HOME / "base", dtype=torch.bfloat16, device_map={"": 0},
        **({"quantization_config": quant} if method == "qlora" else {}),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(HOME / "base")
    lora = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
    )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 127000, (MICRO * (steps + 1), SEQ), generator=generator).tolist()
    data = Dataset.from_dict({"input_ids": ids, "labels": ids})
    common = {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": MICRO,
        "max_steps": steps, "bf16": True, "optim": "paged_adamw_8bit", "logging_steps": 10,
        "save_strategy": "no", "report_to": [], "learning_rate": 1e-4,
        "gradient_checkpointing": True, "disable_tqdm": True,
    }  # fmt: skip
    clock = Clock()
    if stack == "trl":
        from trl import SFTConfig, SFTTrainer

        trainer = SFTTrainer(
            model=model, args=SFTConfig(max_length=SEQ, **common), train_dataset=data,
            processing_class=tokenizer, peft_config=lora, callbacks=[clock],
        )  # fmt: skip
    else:
        if method == "qlora":
            model = prepare_model_for_kbit_training(
                model, gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        else:
            model.enable_input_require_grads()
        model = get_peft_model(model, lora)
        trainer = Trainer(
            model=model, args=TrainingArguments(**common), train_dataset=data, callbacks=[clock]
        )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    return {
        "tokens_per_s": SEQ * MICRO * (clock.steps - WARM_UP) / (clock.ended - clock.began),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "steps": clock.steps,
        "seconds": round(time.time() - began, 1),
    }


def run_all(steps: int, long: int, seconds: float, out: Path | None, turns: list[str]) -> None:
    """Every turn in a process of its own, until the time is up."""
    began = time.time()
    HOME.mkdir(parents=True, exist_ok=True)
    if not (HOME / "texts.jsonl").is_file():
        subprocess.run([sys.executable, __file__, "make"], check=True)
    print(f"made in {time.time() - began:.0f} s", flush=True)
    readings: list[dict] = []
    for turn in turns or TURNS:
        row, _, length = turn.partition(" ")
        if time.time() - began > seconds:
            readings.append({"row": row, "skipped": "no time left"})
            continue
        count = long if length else steps
        command = [sys.executable, __file__, "row", row, "--steps", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        reading = (
            json.loads(lines[-1]) if done.returncode == 0 and lines
            else {"failed": (done.stderr + done.stdout)[-1500:]}
        )  # fmt: skip
        readings.append({"row": row} | reading)
        print(json.dumps(readings[-1])[:1200], flush=True)
        if out:
            out.write_text(json.dumps(document(readings), indent=1) + "\n")
    print(table(readings))


def document(readings: list[dict]) -> dict:
    import importlib.metadata

    import torch

    names = ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate")
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "command": "python benchmarks/train/eight_b.py all",
        "versions": {name: importlib.metadata.version(name) for name in names},
        "readings": readings,
    }


def table(readings: list[dict]) -> str:
    """One line a row and length: the mean speed of its turns, the largest memory, the plan."""
    head = ("row", "steps", "tokens/s (each turn)", "allocated GiB", "reserved GiB",
            "plan: tokens/s", "plan: allocated", "plan: reserved")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|--:|--:|--:|"]
    grouped: dict[tuple[str, int], list[dict]] = {}
    for one in readings:
        if "tokens_per_s" in one:
            grouped.setdefault((one["row"], one["steps"]), []).append(one)
    for (name, steps), turns in grouped.items():
        speeds = [one["tokens_per_s"] for one in turns]
        each = f" ({', '.join(f'{one:,.0f}' for one in speeds)})" if len(speeds) > 1 else ""
        plan = turns[0].get("plan") or {}
        speed = plan.get("tokens_per_s")
        lines.append(
            f"| {name} | {steps} | {statistics.mean(speeds):,.0f}{each} "
            f"| {_gib(turns, 'peak_allocated_bytes')} | {_gib(turns, 'peak_reserved_bytes')} "
            f"| {f'{speed:,.0f}' if speed else ''} | {_gib([plan], 'allocated_bytes')} "
            f"| {_gib([plan], 'reserved_bytes')} |"
        )
    return "\n".join(lines)


def _gib(readings: list[dict], key: str) -> str:
    values = [one[key] for one in readings if key in one]
    return f"{max(values) / GIB:.2f}" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["all", "make", "row"])
    parser.add_argument("row", nargs="?", choices=ROWS)
    parser.add_argument("--turns", nargs="*", default=[], help="rows in order, instead of all")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--long", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if options.what == "make":
        make()
    elif options.what == "all":
        run_all(options.steps, options.long, options.seconds, options.out, options.turns)
    else:
        stack, _, method = options.row.rpartition("-")
        result = (
            theirs(stack, method, options.steps) if stack in ("trl", "hf")
            else ours(method, options.steps, auto=stack == "ours-auto")
        )  # fmt: skip
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
