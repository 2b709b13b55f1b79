"""Exact scores of base and adapter on the demo's held-out requests, from one loaded model.

The base is the same model with its adapter switched off, so both answer in the same precision,
in the same batches, by greedy decoding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loracle.catalog.datasets import Sample
from loracle.jobs.train.templates import encode_prompt

if TYPE_CHECKING:
    import torch

BATCH = 40
MAX_NEW_TOKENS = 28  # the longest ticket takes 25


def answers_of(
    model: Any, tokenizer: Any, samples: Sequence[Sample], device: "torch.device"
) -> list[str]:
    """Greedy answers, prompts padded on the left."""
    import torch

    answers: list[str] = []
    for start in range(0, len(samples), BATCH):
        prompts = [encode_prompt(tokenizer, one) for one in samples[start : start + BATCH]]
        batch = tokenizer.pad(
            {"input_ids": prompts}, padding=True, padding_side="left", return_tensors="pt"
        ).to(device)
        with torch.no_grad():
            made = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        rest = made[:, batch["input_ids"].shape[1] :]
        answers += [text.strip() for text in tokenizer.batch_decode(rest, skip_special_tokens=True)]
    return answers


def load_tuned(base: str, adapter: Path, device: "torch.device") -> tuple[Any, Any]:
    """The base in bf16 with the adapter on it, and its tokenizer."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).to(device)
    return PeftModel.from_pretrained(model, adapter).eval(), AutoTokenizer.from_pretrained(adapter)
