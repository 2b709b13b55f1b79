"""From this machine's card to the setup that runs: catalog, real free memory, the plan."""

import pytest

from loracle.catalog.models import find_model
from loracle.domain.estimate import Range
from loracle.domain.recipe import Recipe
from loracle.errors import MachineError, RunError
from loracle.jobs.train import place, preflight
from loracle.jobs.train.data import Counts
from loracle.planner.resolve import resolve

GIB = 2**30
H200 = place.LocalCard("NVIDIA H200", (9, 0), 141 * GIB, 138 * GIB)


def recipe(**training):
    return Recipe.model_validate(
        {"model": "meta-llama/Llama-3.1-8B", "data": {"tokens": 1_000_000}, "training": training}
    )


def test_a_card_is_found_by_the_name_that_the_driver_gives_it():
    gpu = place.catalog_card(H200)
    assert gpu.memory_bytes == pytest.approx(141 * GIB, rel=0.05)
    busy = place.catalog_card(place.LocalCard("NVIDIA H200", (9, 0), 141 * GIB, 20 * GIB))
    assert busy.usable_bytes == 20 * GIB


@pytest.mark.parametrize(
    ("visible", "rank", "card"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("2", 0, "2"),
        ("4,6", 1, "6"),
        ("MIG-a1,GPU-b2", 0, "MIG-a1"),
    ],
)
def test_the_card_of_a_process_is_the_one_that_it_may_see(monkeypatch, visible, rank, card):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert place.visible_card(rank) == card


def test_an_unknown_card_is_none():
    assert place.catalog_card(place.LocalCard("NVIDIA XYZ", (9, 0), GIB, GIB)) is None


def test_the_plan_for_this_card_gives_micro_batch_and_keeps_the_effective_batch():
    asked = recipe(effective_batch=16)
    gpu = place.catalog_card(H200)
    plan = place.plan_here(asked, gpu, 1)
    candidate = place.candidate_for(plan, gpu.id, 1)
    setup = place.setup_from(asked, candidate, plan.setup)
    assert setup.micro_batch * setup.grad_accum == 16
    assert setup.micro_batch > 1
    assert candidate.memory.device_bytes.likely < gpu.usable_bytes


def test_checkpointing_is_left_to_the_plan_only_where_the_recipe_says_auto():
    gpu = place.catalog_card(H200)
    for asked, expected in ((True, True), ("auto", False)):
        wanted = recipe(gradient_checkpointing=asked)
        plan = place.plan_here(wanted, gpu, 1)
        candidate = place.candidate_for(plan, gpu.id, 1)
        setup = place.setup_from(wanted, candidate, plan.setup)
        assert setup.gradient_checkpointing is expected


@pytest.mark.parametrize(
    ("capability", "dtype", "adapters"),
    [((7, 0), "float16", "float32"), ((7, 5), "float16", "float32"),
     ((8, 0), "bfloat16", "bfloat16"), ((9, 0), "bfloat16", "bfloat16"),
     (None, "bfloat16", "bfloat16")],
)  # fmt: skip
def test_bf16_needs_capability_8_whatever_is_bf16_supported_says(capability, dtype, adapters):
    setup = resolve(recipe(), find_model("meta-llama/Llama-3.1-8B"))
    fitted = preflight.for_capability(setup, capability)
    assert (fitted.base_dtype, fitted.autocast, fitted.lora.dtype) == (dtype, dtype, adapters)


def test_memory_that_does_not_fit_is_refused_or_left_to_adapt():
    needed = Range(9 * GIB, 10 * GIB, 11 * GIB)
    with pytest.raises(MachineError) as raised:
        preflight.check_memory(needed, 9 * GIB, adapts=False)
    assert raised.value.values == {"likely_gib": 10.0, "high_gib": 11.0, "free_gib": 9.0}
    assert [f.id for f in preflight.check_memory(needed, 9 * GIB, adapts=True)] == ["memory_tight"]
    tight = preflight.check_memory(needed, int(10.5 * GIB), adapts=False)
    assert [f.id for f in tight] == ["memory_tight"]
    assert preflight.check_memory(needed, 12 * GIB, adapts=False) == []


def test_disk_is_counted_on_the_volume_that_is_written_to(tmp_path, monkeypatch):
    setup = resolve(recipe(), find_model("meta-llama/Llama-3.1-8B"))
    import shutil

    free = {"bytes": 40 * 10**9}
    asked = []

    def usage(path):
        asked.append(path)
        return type("usage", (), {"free": free["bytes"]})

    monkeypatch.setattr(shutil, "disk_usage", usage)
    preflight.check_disk(tmp_path, setup, 3, merges=True)
    assert asked == [tmp_path]
    free["bytes"] = 10 * 10**9  # less than the merged model's 16 GB
    with pytest.raises(MachineError) as raised:
        preflight.check_disk(tmp_path, setup, 3, merges=True)
    assert raised.value.code == "E053"
    assert raised.value.values["merged_gb"] == pytest.approx(16.1, abs=0.1)
    preflight.check_disk(tmp_path, setup, 3, merges=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    setup = resolve(recipe(), find_model("meta-llama/Llama-3.1-8B"))
    with pytest.raises(MachineError) as raised:
        preflight.check_disk(tmp_path / "missing", setup, 3, merges=False)
    assert raised.value.code == "E054"


def counts(**changes):
    return Counts(**{"rows": 10, "samples": 10, "tokens": 100, "label_tokens": 50} | changes)


def test_what_the_data_loses_is_said():
    assert preflight.check_counts(counts(), 64) == []
    found = preflight.check_counts(counts(samples=8, unlabelled=2, cut=3, unended=1), 64)
    assert [(one.id, one.values["samples"]) for one in found] == [
        ("unended", 1), ("unlabelled", 2), ("cut", 3)
    ]  # fmt: skip


def test_data_that_never_ends_an_answer_is_refused():
    with pytest.raises(RunError) as raised:
        preflight.check_counts(counts(unended=10), 64)
    assert raised.value.code == "E063"
