"""What runs is what is promised: after an adaptation, without packing, on several cards."""

import pytest
import torch

from loracle.domain.recipe import Recipe
from loracle.estimate.memory import estimate_memory
from loracle.jobs.runs import RunFolder, write_status
from loracle.jobs.train import place, settle
from loracle.jobs.train.options import Options
from loracle.jobs.train.process import train_run

H200 = place.LocalCard("NVIDIA H200", (9, 0), 150_754_820_096, 150_110_011_392)


@pytest.fixture
def settled_of(tmp_path, monkeypatch):
    """Settle an 8B recipe on an H200; `adapted` is what earlier starts turned."""

    def of(adapted=None, world=1, **training):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        run = RunFolder(folder)
        write_status(run, state="new", adapted=adapted)
        monkeypatch.setenv("WORLD_SIZE", str(world))
        recipe = Recipe.model_validate({
            "model": "meta-llama/Llama-3.1-8B",
            "data": {"tokens": 2_000_000},
            "training": {"effective_batch": 16, "micro_batch": 16, "seq_len": 2048,
                         "gradient_checkpointing": True} | training,
        })  # fmt: skip
        return settle.settle(run, recipe, H200)

    return of


def test_the_promise_is_of_the_setup_that_runs(settled_of):
    first = settled_of()
    assert (first.setup.micro_batch, first.setup.grad_accum) == (16, 1)
    adapted = settled_of({"micro_batch": 8, "grad_accum": 2})
    assert (adapted.setup.micro_batch, adapted.setup.grad_accum) == (8, 2)
    for one in (first, adapted):
        expected = estimate_memory(one.setup, one.gpu).allocated_bytes.likely
        assert place.promise(one.candidate)["allocated_bytes"] == expected
    before, after = (place.promise(one.candidate)["allocated_bytes"] for one in (first, adapted))
    assert after < 0.8 * before


def test_a_setup_as_planned_keeps_the_plans_own_numbers(settled_of):
    """They may be the dry run's; the formula is asked only where there are none."""
    settled = settled_of()
    (planned,) = [one for one in settled.plan.candidates if one is settled.candidate]
    assert settled.with_changes(grad_accum=1).candidate is planned


def test_an_adapted_run_keeps_its_batch_on_another_number_of_cards(settled_of):
    settled = settled_of({"micro_batch": 8, "grad_accum": 2}, world=2)
    setup = settled.setup
    assert (setup.micro_batch, setup.grad_accum, setup.num_gpus, setup.parallel) == (8, 1, 2, "ddp")


def test_a_run_that_cannot_be_packed_is_promised_its_own_speed(settled_of):
    packed = settled_of()
    plain = packed.with_changes(packing=False)
    assert plain.setup.packing is False
    assert plain.candidate.setup == plain.setup
    assert packed.candidate.setup.packing is True


def test_each_out_of_memory_is_held_against_the_plan_of_its_own_start(make_run, monkeypatch):
    """Two in a row, 4 -> 2 -> 1, with an H200's plan for a run on the processor."""
    real = settle.settle
    monkeypatch.setattr(settle, "settle", lambda run, recipe, card: real(run, recipe, H200))
    training = {"effective_batch": 4, "micro_batch": 4, "steps": 3, "gradient_checkpointing": True}
    run = make_run(training=training, options=Options(on_oom="adapt"))
    embed = torch.nn.Embedding.forward

    def limited(self, ids):
        if ids.numel() > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return embed(self, ids)

    from loracle.jobs.train import isolation

    monkeypatch.setattr(isolation, "keeps_apart", lambda *args: True)
    monkeypatch.setattr(torch.nn.Embedding, "forward", limited)
    states = [train_run(run, resume=one > 0).state for one in range(3)]
    assert states == ["adapted", "adapted", "finished"]
    planned = [event["plan"]["allocated_bytes"] for event in run.events("started")]
    assert planned == sorted(planned, reverse=True)
    assert len(set(planned)) == 3
    assert [event["plan_bytes"] for event in run.events("out_of_memory")] == planned[:2]
    (finished,) = run.events("finished")
    assert finished["plan"]["allocated_bytes"] == planned[2]
