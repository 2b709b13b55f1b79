"""Bytes on disk against the sizes that model pages and saved adapters show."""

import pytest

from loracle.catalog.models import find_model
from loracle.domain.estimate import Range
from loracle.domain.setup import LoraSetup, TrainingSetup
from loracle.estimate.storage import (
    adapter_bytes,
    checkpoint_bytes,
    download_bytes,
    merged_bytes,
    transfer_seconds,
)

LLAMA = find_model("meta-llama/Llama-2-7b-hf", offline=True)


def test_download_is_the_16_bit_checkpoint():
    assert download_bytes(LLAMA) == pytest.approx(13.48e9, rel=0.002)
    assert merged_bytes(LLAMA) == download_bytes(LLAMA)


def test_adapter_of_rank_16_on_attention():
    setup = TrainingSetup(model=LLAMA, lora=LoraSetup(rank=16, targets="attention"))
    assert adapter_bytes(setup) == 16_777_216 * 2
    wide = setup.with_changes(lora=LoraSetup(rank=16, targets="attention", dtype="float32"))
    assert adapter_bytes(wide) == 16_777_216 * 4


def test_checkpoint_holds_the_optimizer_too():
    setup = TrainingSetup(model=LLAMA, optimizer="adamw_torch")
    extra = checkpoint_bytes(setup) - adapter_bytes(setup)
    params = adapter_bytes(setup) // 2
    assert extra == pytest.approx(8 * params, rel=0.06)
    lean = setup.with_changes(optimizer="paged_adamw_8bit")
    assert checkpoint_bytes(lean) < checkpoint_bytes(setup)


def test_full_training_saves_everything():
    setup = TrainingSetup(
        model=LLAMA, method="full", quant=None, lora=None, optimizer="adamw_torch"
    )
    assert adapter_bytes(setup) == 2 * LLAMA.num_params
    assert checkpoint_bytes(setup) == pytest.approx(6 * LLAMA.num_params, rel=0.01)


def test_slow_lines_take_longer():
    seconds = transfer_seconds(1e9, Range(1e7, 5e7, 1e8))
    assert (seconds.low, seconds.likely, seconds.high) == (10.0, 20.0, 100.0)
