"""Our trainer, TRL's and plain Trainer in turns in one process: speed and memory of each.

    python benchmarks/train/eight_b.py make
    python benchmarks/train/side_by_side.py [--steps 26] [--turns 3] [--out side_by_side.json]

The model, batch and optimizer are those of `eight_b.py`. A step of 4,096 tokens waits for the host
on this card, and hosts and processes differ by more than the trainers do: so the base is loaded
once, and the trainers take turns on it. Speed is all tokens after eight steps over all the time
they took, with each stack's own logging and data; memory is torch's peak in the turn. Adapters are
each stack's own: bf16 for us, bf16 on 4 bits and fp32 on 16 for TRL, fp32 for plain Trainer.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import eight_b
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
from trl import SFTConfig, SFTTrainer

WARM_UP = 8
LORA = LoraConfig(
    r=16, lora_alpha=32, lora_dropout=0.0, target_modules=eight_b.TARGETS, task_type="CAUSAL_LM"
)


class Clock(TrainerCallback):
    """Waits for the card twice: after the warm-up and at the end."""

    steps, began, ended = 0, 0.0, 0.0

    def on_step_end(self, *args, **kwargs):
        self.steps += 1
        if self.steps == WARM_UP:
            torch.cuda.synchronize()
            self.began = time.perf_counter()

    def on_train_end(self, *args, **kwargs):
        torch.cuda.synchronize()
        self.ended = time.perf_counter()


@dataclass
class Place:
    """What all turns share."""

    model: torch.nn.Module
    tokenizer: object
    ids: list[list[int]]
    method: str
    steps: int

    @property
    def common(self) -> dict:
        return {
            "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": eight_b.MICRO,
            "max_steps": self.steps, "bf16": True, "optim": "paged_adamw_8bit",
            "logging_steps": 10, "save_strategy": "no", "report_to": [], "learning_rate": 1e-4,
            "gradient_checkpointing": True, "disable_tqdm": True,
        }  # fmt: skip

    @property
    def rows(self) -> Dataset:
        return Dataset.from_dict({"input_ids": self.ids, "labels": self.ids})


def trl(place: Place, clock: Clock) -> Trainer:
    place.model.set_attn_implementation("sdpa")
    return SFTTrainer(
        model=place.model, args=SFTConfig(max_length=eight_b.SEQ, **place.common),
        train_dataset=place.rows, processing_class=place.tokenizer, peft_config=LORA,
        callbacks=[clock],
    )  # fmt: skip


def plain(place: Place, clock: Clock) -> Trainer:
    """PEFT's preparation of a quantised model, without its fp32 copy of all that is not quantised:
    it would stay for the turns that follow."""
    place.model.set_attn_implementation("sdpa")
    if place.method == "qlora":
        for parameter in place.model.parameters():
            parameter.requires_grad_(False)
    place.model.enable_input_require_grads()
    adapted = get_peft_model(place.model, LORA)
    return Trainer(
        model=adapted, args=TrainingArguments(**place.common), train_dataset=place.rows,
        callbacks=[clock],
    )  # fmt: skip


def upcast(place: Place, clock: Clock) -> Trainer:
    """As PEFT's guide has it: everything that is not quantised in fp32. Runs last."""
    place.model.set_attn_implementation("sdpa")
    model = prepare_model_for_kbit_training(
        place.model, gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    return Trainer(
        model=get_peft_model(model, LORA), args=TrainingArguments(**place.common),
        train_dataset=place.rows, callbacks=[clock],
    )  # fmt: skip


def ours(place: Place, clock: Clock) -> Trainer:
    """LoracleTrainer on the arguments, kernel and adapters that `loracle train` gives it."""
    from loracle.catalog.shapes import shape_from_config
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.isolation import settle_layout, use_layout
    from loracle.jobs.train.model import add_adapters
    from loracle.jobs.train.trainer import LoracleTrainer, SaveRules, training_arguments
    from loracle.planner.resolve import resolve

    recipe = Recipe.model_validate(eight_b.recipe(place.method, place.steps))
    setup = resolve(recipe, shape_from_config(place.model.config.to_dict(), "8B"))
    place.model.set_attn_implementation("sdpa")
    model = add_adapters(place.model, setup)
    layout = settle_layout(model, setup, place.model.device)
    use_layout(model, layout)
    rows = place.rows.add_column("seq_lengths", [[eight_b.SEQ]] * len(place.ids))
    trainer = LoracleTrainer(
        model, setup,
        training_arguments(recipe, setup, folder=Path(tempfile.mkdtemp()), has_eval=False,
                           on_card=True),
        tokenizer=place.tokenizer, pad_token_id=128004, train_rows=rows, eval_rows=None,
        flat=layout.flat,
        rules=SaveRules(folder=Path(tempfile.mkdtemp()), keep=1, recipe_hash="",
                        on_saved=lambda *_: None, on_rng_lost=lambda _: None),
        callbacks=[clock], on_reporter_failed=lambda *_: None,
    )  # fmt: skip
    trainer.add_callback(Bookkeeping(trainer))
    return trainer


class Bookkeeping(TrainerCallback):
    """What the run's pulse does at each step."""

    def __init__(self, trainer) -> None:
        self.trainer, self.losses = trainer, []

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.remember_rng()
        self.losses.append(self.trainer.take_step_loss())
        self.trainer.take_step_counts()
        if state.global_step % 10 == 0:
            torch.stack(self.losses).tolist()
            self.losses.clear()


STACKS = {"ours": ours, "trl": trl, "hf": plain, "hf-upcast": upcast}


def turn(name: str, place: Place) -> dict[str, float]:
    """Train, read, and leave the base as it was."""
    clock = Clock()
    trainer = STACKS[name](place, clock)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    read = {
        "tokens_per_s": round(
            eight_b.SEQ * eight_b.MICRO * (clock.steps - WARM_UP) / (clock.ended - clock.began), 1
        ),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    trainer.model.unload()
    place.model.__dict__.pop("forward", None)  # TRL's fused head
    place.model.__dict__.pop("peft_config", None)
    place.model.requires_grad_(False)
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return read


def load(method: str, steps: int) -> Place:
    quant = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        eight_b.HOME / "base", dtype=torch.bfloat16, device_map={"": 0},
        **({"quantization_config": quant} if method == "qlora" else {}),
    )  # fmt: skip
    model.config.use_cache = False
    model.requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 127000, (eight_b.MICRO * (steps + 1), eight_b.SEQ), generator=draw)
    return Place(
        model, AutoTokenizer.from_pretrained(eight_b.HOME / "base"), ids.tolist(), method, steps
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=["qlora", "lora"])
    parser.add_argument("--out", type=Path, default=Path("side_by_side.json"))
    options = parser.parse_args()
    found: dict[str, dict] = {}
    for method in options.methods:
        place = load(method, options.steps)
        order = ["trl", "ours", "hf"] * options.turns + ["hf-upcast"] * (method == "qlora")
        for name in order:
            found.setdefault(method, {}).setdefault(name, []).append(turn(name, place))
            print(method, name, found[method][name][-1], flush=True)
            document = eight_b.document([]) | {
                "command": "python benchmarks/train/side_by_side.py", "steps": options.steps,
                "median_tokens_per_s": {
                    one: {stack: statistics.median(r["tokens_per_s"] for r in reads)
                          for stack, reads in stacks.items()}
                    for one, stacks in found.items()
                },
                "readings": found,
            }  # fmt: skip
            options.out.write_text(json.dumps(document, indent=1) + "\n")
        del place
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
