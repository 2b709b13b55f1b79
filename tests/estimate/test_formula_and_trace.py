"""Two engines, one price list: the formula's step against the dry run's, by architecture."""

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.models import find_model
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.pricing import price_trace
from loracle.estimate.speed import estimate_speed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "method", "quant", "stack"),
    [
        ("Qwen/Qwen3-8B", "qlora", "nf4-double", "loracle"),
        ("meta-llama/Llama-2-7b-hf", "lora", None, "hf-trainer"),
        ("google/gemma-2-9b", "qlora", "nf4-double", "trl"),
        ("microsoft/phi-2", "qlora", "nf4-double", "hf-trainer"),
        ("microsoft/Phi-3-mini-4k-instruct", "qlora", "nf4", "trl"),
        ("bigcode/starcoder2-7b", "qlora", "nf4-double", "loracle"),
        ("EleutherAI/pythia-6.9b", "full", None, "hf-trainer"),
    ],
)
def test_same_step_time(model, method, quant, stack):
    from loracle.dryrun.trace import trace

    plain = stack == "hf-trainer"
    lora = LoraSetup(dropout=0.05, dtype="float32" if plain else "bfloat16")
    setup = TrainingSetup(
        model=find_model(model, offline=True), method=method, quant=quant, stack=stack,
        kbit_upcast=plain and quant is not None, seq_len=2048, micro_batch=4,
        optimizer="adamw_torch_fused", lora=None if method == "full" else lora,
    )  # fmt: skip
    card = find_gpu("h200-141gb-sxm")
    exact = price_trace(trace(setup), setup, card).step_seconds.likely
    assert estimate_speed(setup, card).step_seconds.likely == pytest.approx(exact, rel=0.08)
