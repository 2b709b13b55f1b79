"""Real runs of a tiny model: what they leave behind, how they stop, how they go on."""

import json
import os
import resource
import shutil
import signal
import threading
from decimal import Decimal
from pathlib import Path

import pytest
import torch

from loracle.errors import InputError, LoracleError, MachineError, RunError
from loracle.jobs.train import checkpoints
from loracle.jobs.train.options import Options
from loracle.jobs.train.process import train_run

DROPOUT = {"rank": 4, "targets": "attention", "dropout": 0.1}


@pytest.fixture(scope="module")
def reference(place, tmp_path_factory):
    """An uninterrupted run of 8 steps with dropout, accumulation and evaluation."""
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train.launch import create_run

    recipe = Recipe.model_validate(reference_recipe(place, tmp_path_factory.mktemp("reference")))
    run = create_run(recipe, Options(), name="reference")
    assert train_run(run, resume=False).state == "finished"
    return run


def reference_recipe(place, folder):
    return {
        "model": str(place / "model"),
        "method": "lora",
        "data": {"train": str(place / "train.jsonl"), "eval": str(place / "eval.jsonl")},
        "lora": DROPOUT,
        "training": {
            "seq_len": 96, "steps": 8, "effective_batch": 4, "micro_batch": 2,
            "gradient_checkpointing": False, "optimizer": "adamw_torch",
            "learning_rate": 5e-3,
        },
        "evaluation": {"every_steps": 3},
        "save": {"every_steps": 2, "keep": 2, "folder": str(folder)},
    }  # fmt: skip


@pytest.fixture
def again(place, reference, tmp_path):
    """A copy of the reference as it was after step 4, to be resumed."""
    copy = tmp_path / "again"
    shutil.copytree(reference.path, copy)
    from loracle.jobs.runs import RunFolder

    run = RunFolder(copy)
    for checkpoint in checkpoints.list_checkpoints(run.checkpoints):
        shutil.rmtree(checkpoint.path)
    run.events_file.unlink()
    run.status_file.unlink()
    shutil.rmtree(run.adapter)
    return run


def stop_after(run, step, reason="stop"):
    """Ask a run to stop as soon as it has logged a step."""

    def watch():
        while not any(event["step"] >= step for event in run.events("step")):
            pass
        if reason == "stop":
            run.stop_request.touch()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def test_a_run_leaves_everything_that_the_others_read(reference):
    names = {path.name for path in reference.path.iterdir()}
    assert {"recipe.yaml", "run.json", "status.json", "events.jsonl", "record.json", "adapter",
            "checkpoints"} <= names  # fmt: skip
    facts = reference.read_facts()
    assert facts["schema"] == "loracle.run/1"
    assert len(facts["model"]["hash"]) == 64
    assert facts["data"]["train"]["counts"]["samples"] == 40
    assert len(facts["data"]["train"]["files"][0]["sha256"]) == 64
    assert facts["special_tokens"]["stop_ids"] == [2]
    assert {"torch", "transformers", "trl", "peft"} <= facts["versions"].keys()
    assert reference.state() == "finished"
    events = [event["event"] for event in reference.events()]
    assert events[:4] == ["started", "data", "data", "model_loaded"]
    assert events[-1] == "finished"
    assert "evaluated" in events


def test_the_adapter_loads_on_the_base_and_changes_it(reference, place):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(place / "model")
    tuned = PeftModel.from_pretrained(base, reference.adapter)
    ids = torch.tensor([[3, 4, 5]])
    with tuned.disable_adapter():
        before = tuned(ids).logits
    assert (tuned(ids).logits - before).abs().max() > 1e-3
    assert (reference.adapter / "chat_template.jinja").is_file()


def test_the_record_is_a_measured_run(reference):
    from loracle.catalog.measured import read_runs

    (row,) = read_runs(reference.record)
    assert (row.stack, row.method, row.seq_len, row.micro_batch) == ("loracle", "lora", 96, 2)
    assert row.tokens_per_s > 0


def test_the_newest_two_and_the_best_checkpoints_stay(reference):
    steps = [one.step for one in checkpoints.list_checkpoints(reference.checkpoints)]
    assert steps[-2:] == [6, 8]
    evaluated = {event["step"]: event["eval_loss"] for event in reference.events("evaluated")}
    best = min(evaluated, key=evaluated.get)
    assert best in steps


@pytest.mark.parametrize("reason", ["stop", "terminated"])
def test_a_stopped_run_goes_on_with_the_same_losses(again, reference, losses, reason):
    stop_after(again, 3, reason)
    outcome = train_run(again, resume=False)
    assert outcome.state == "stopped"
    assert outcome.reason == reason
    assert outcome.step < 8
    assert again.state() == "stopped"
    assert not again.adapter.exists()
    newest, _ = checkpoints.newest_whole(again.checkpoints)
    assert newest.step == outcome.step
    assert train_run(again, resume=True).state == "finished"
    assert losses(again) == losses(reference)


def test_losses_that_are_read_late_are_the_same_and_none_is_missing(
    place, losses, reference, tmp_path, monkeypatch
):
    """As on a card: read together every few seconds, and before every save and evaluation."""
    from loracle.domain.recipe import Recipe
    from loracle.jobs.train import trainer
    from loracle.jobs.train.launch import create_run

    monkeypatch.setattr(trainer, "log_every", lambda setup, on_card: 2**31)
    recipe = Recipe.model_validate(reference_recipe(place, tmp_path))
    run = create_run(recipe, Options(), name="late")
    assert train_run(run, resume=False).state == "finished"
    assert losses(run) == losses(reference)
    order = [(event["event"], event["step"]) for event in run.events() if "step" in event]
    for at, (kind, step) in enumerate(order):
        if kind in ("saved", "evaluated", "finished"):
            assert ("step", step) in order[:at], (kind, step)


@pytest.mark.parametrize(
    "file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json",
             "adapter_model.safetensors"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_checkpoint_is_passed_over_and_the_losses_stay_the_same(
    again, reference, losses, file, damage, tmp_path
):
    """Trainer resumes silently with other losses where optimizer, scheduler or RNG are missing."""
    source = RESUMABLE.get("folder")
    if source is None:
        stop_after(again, 5)
        train_run(again, resume=False)
        source = RESUMABLE["folder"] = tmp_path.parent / "resumable"
        shutil.copytree(again.path, source)
    else:
        shutil.rmtree(again.path)
        shutil.copytree(source, again.path)
    found = checkpoints.list_checkpoints(again.checkpoints)
    path = found[-1].path / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-7])
    chosen, broken = checkpoints.newest_whole(again.checkpoints)
    assert chosen.step == found[-2].step
    assert [(one.step, fault) for one, fault in broken] == [(found[-1].step, file)]
    if (file, damage) == ("optimizer.pt", "missing"):
        assert train_run(again, resume=True).state == "finished"
        assert losses(again) == losses(reference)
        assert any(event["file"] == file for event in again.events("checkpoint_broken"))


RESUMABLE: dict[str, Path] = {}


def test_sigterm_in_the_middle_of_a_step_saves_the_last_whole_one(make_run, losses, monkeypatch):
    """With accumulation, a reclaimed machine is left between micro-steps, RNG included."""
    from loracle.jobs.train.trainer import LoracleTrainer

    training = {"effective_batch": 4, "micro_batch": 1, "steps": 4}
    whole = make_run("whole", training=training, lora=DROPOUT)
    train_run(whole, resume=False)
    run = make_run("cut", training=training, lora=DROPOUT)
    steps = []
    original = LoracleTrainer.training_step

    def count(self, *args, **kwargs):
        steps.append(1)
        if len(steps) == 10:  # the second micro-step of step 3
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LoracleTrainer, "training_step", count)
    outcome = train_run(run, resume=False)
    assert (outcome.state, outcome.reason, outcome.step) == ("stopped", "terminated", 2)
    monkeypatch.undo()
    assert train_run(run, resume=True).state == "finished"
    assert losses(run) == losses(whole)


def test_out_of_memory_is_adapted_and_the_run_goes_on(make_run, monkeypatch):
    """A card that holds one sequence, not two: the micro-batch is halved, the batch stays."""
    training = {"effective_batch": 4, "micro_batch": 2, "steps": 4}
    reference = make_run("reference", training=training)
    train_run(reference, resume=False)
    run = make_run("small", training=training, options=Options(on_oom="adapt"))
    limit = {"tokens": 10_000}
    embed = torch.nn.Embedding.forward

    def limited(self, ids):
        if ids.numel() > limit["tokens"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if len(list(run.events("step"))) >= 2:
            limit["tokens"] = 96
        return embed(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", limited)
    outcome = train_run(run, resume=False)
    assert outcome.state == "adapted"
    assert outcome.step >= 2
    newest, _ = checkpoints.newest_whole(run.checkpoints)
    assert newest.step == outcome.step
    assert train_run(run, resume=True).state == "finished"
    (adapted,) = run.events("adapted")
    assert adapted["changes"] == {"micro_batch": [2, 1], "grad_accum": [2, 4]}
    (oom,) = run.events("out_of_memory")
    assert oom["phase"] == "step"
    assert run.read_facts()["setup"]["micro_batch"] == 1
    ours = [event["loss"] for event in run.events("step")]
    theirs = [event["loss"] for event in reference.events("step")]
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_out_of_memory_without_adapt_names_the_knobs_and_keeps_the_step(make_run, monkeypatch):
    run = make_run(training={"micro_batch": 1, "steps": 4})
    embed = torch.nn.Embedding.forward

    def limited(self, ids):
        if len(list(run.events("step"))) >= 3:
            raise RuntimeError("CUDA error: out of memory")  # the driver's spelling
        return embed(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", limited)
    with pytest.raises(MachineError) as raised:
        train_run(run, resume=False)
    assert raised.value.code == "E055"
    assert "hint.train.oom_seq_len" in raised.value.hints
    assert checkpoints.newest_whole(run.checkpoints)[0].step == 3


def test_a_model_that_does_not_fit_at_all_is_told_as_out_of_memory(make_run, monkeypatch):
    from loracle.jobs.train import model

    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(model, "add_adapters", full)
    with pytest.raises(MachineError) as raised:
        train_run(make_run(), resume=False)
    assert (raised.value.code, raised.value.values["phase"]) == ("E055", "start")
    assert "hint.train.oom_card" in raised.value.hints


def test_a_full_disk_stops_cleanly_and_the_last_checkpoint_is_whole(make_run):
    """The limit on file sizes makes real writes fail in the middle, as a full volume does."""
    run = make_run(training={"steps": 2})
    train_run(run, resume=False)
    size = max(path.stat().st_size for path in (run.checkpoints / "step-000002").iterdir())
    full = make_run("full", training={"steps": 6})
    saved = []

    def limit_after_first_save():
        while not saved:
            saved.extend(full.events("saved"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    thread = threading.Thread(target=limit_after_first_save, daemon=True)
    thread.start()
    try:
        with pytest.raises(RunError) as raised:
            train_run(full, resume=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert raised.value.code == "E064"
    whole, broken = checkpoints.newest_whole(full.checkpoints)
    assert whole.step == saved[0]["step"]
    assert broken == []
    assert not checkpoints.writing_path(full.checkpoints).exists()
    assert train_run(full, resume=True).state == "finished"


def test_a_loss_that_is_no_number_stops_and_is_never_saved(make_run, monkeypatch):
    """Trainer's own filter would report it as the average of earlier losses."""
    from loracle.jobs.train.trainer import LoracleTrainer

    run = make_run(training={"steps": 9})
    compute = LoracleTrainer.compute_loss

    def broken(self, *args, **kwargs):
        loss = compute(self, *args, **kwargs)
        return loss * float("nan") if self.state.global_step >= 3 else loss

    monkeypatch.setattr(LoracleTrainer, "compute_loss", broken)
    outcome = train_run(run, resume=False)
    assert (outcome.state, outcome.reason) == ("stopped", "not_finite")
    assert checkpoints.newest_whole(run.checkpoints)[0].step == 2
    assert [event["alarm"] for event in run.events("alarm")] == ["not_finite", "not_finite"]


def test_the_budget_stops_the_run_and_a_resume_remembers_what_was_spent(make_run):
    options = Options(price_per_hour=Decimal(36000), budget=Decimal("0.5"), currency="CNY")
    run = make_run(training={"steps": 10_000}, options=options)
    outcome = train_run(run, resume=False)
    assert (outcome.state, outcome.reason) == ("stopped", "budget")
    spent = Decimal(str(run.status()["spent"]))
    assert spent >= Decimal("0.5")
    outcome = train_run(run, resume=True)
    assert (outcome.state, outcome.reason) == ("stopped", "budget")
    assert Decimal(str(run.status()["spent"])) > spent


def test_minutes_count_as_well_as_steps(make_run):
    run = make_run(training={"steps": 3}, save={"every_steps": None, "every_minutes": 1e-6})
    train_run(run, resume=False)
    assert [event["step"] for event in run.events("saved")] == [1, 2, 3]


def test_rows_that_changed_are_refused_at_a_resume(make_run, place, tmp_path, tiny):
    data = tmp_path / "own.jsonl"
    tiny.write_rows(data, tiny.make_rows(20))
    run = make_run(data={"train": str(data)}, training={"steps": 6})
    stop_after(run, 1)
    train_run(run, resume=False)
    tiny.write_rows(data, tiny.make_rows(20, seed=9))
    with pytest.raises(RunError) as raised:
        train_run(run, resume=True)
    assert raised.value.code == "E067"


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        ({"lora": {"targets": ["query_key_value"]}}, "E014"),
        ({"lora": {"targets": ["lm_head"]}}, "E014"),
    ],
)
def test_what_cannot_train_is_refused_before_anything_is_loaded(make_run, groups, code):
    run = make_run(**groups)
    with pytest.raises(LoracleError) as raised:
        train_run(run, resume=False)
    assert raised.value.code == code or raised.value.problems[0].code == code
    assert not any(run.events("model_loaded"))


@pytest.mark.parametrize("stack", ["trl", "hf-trainer"])
def test_other_stacks_are_for_planning(make_run, stack, tmp_path):
    """Refused before a run folder is made, and where a folder names one all the same."""
    with pytest.raises(InputError) as raised:
        make_run("planned", stack=stack)
    assert (raised.value.code, raised.value.hints) == ("E013", ("hint.train.stack",))
    assert raised.value.values == {"stack": stack}
    assert not (tmp_path / "runs" / "planned").exists()
    run = make_run()
    run.recipe.write_text(run.recipe.read_text().replace("stack: loracle", f"stack: {stack}"))
    with pytest.raises(InputError) as raised:
        train_run(run, resume=False)
    assert raised.value.message == "error.train.stack"


def test_a_tokenizer_without_an_end_is_refused(make_run, tiny, tmp_path):
    model = tiny.make_model(tmp_path / "endless", eos=None)
    path = model / "generation_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items()
                                if k != "eos_token_id"}))  # fmt: skip
    with pytest.raises(InputError) as raised:
        train_run(make_run(model=str(model)), resume=False)
    assert raised.value.code == "E063"


def test_a_template_that_never_ends_a_turn_is_refused(make_run, tiny, tmp_path):
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    model = tiny.make_model(tmp_path / "endless", template=template)
    with pytest.raises(RunError) as raised:
        train_run(make_run(model=str(model)), resume=False)
    assert raised.value.message == "error.train.never_stops"


def test_a_pad_token_that_is_the_end_is_replaced_by_a_reserved_one(make_run, tiny, tmp_path):
    model = tiny.make_model(tmp_path / "padded", pad="<|im_end|>")
    run = make_run(model=str(model), training={"steps": 1})
    train_run(run, resume=False)
    assert [event["token"] for event in run.events("pad_chosen")] == ["<|endoftext|>"]
    saved = json.loads((run.adapter / "tokenizer_config.json").read_text())
    assert saved["pad_token"] == "<|endoftext|>"


def test_full_fine_tuning_leaves_a_model(make_run):
    from transformers import AutoModelForCausalLM

    run = make_run(method="full", training={"steps": 2})
    assert train_run(run, resume=False).state == "finished"
    AutoModelForCausalLM.from_pretrained(run.model)
    assert not run.adapter.exists()


def test_recomputation_changes_no_loss(make_run, losses):
    plain = make_run("plain", training={"gradient_checkpointing": False})
    every = make_run("every", training={"gradient_checkpointing": True})
    second = make_run("second", training={"gradient_checkpointing": 2})
    for run in (plain, every, second):
        train_run(run, resume=False)
    assert losses(plain) == pytest.approx(losses(every), rel=1e-5)
    assert losses(plain) == pytest.approx(losses(second), rel=1e-5)


@pytest.mark.slow
def test_a_rehearsal_takes_two_steps_saves_and_goes_on_before_the_run(make_run, place):
    run = make_run(
        options=Options(smoke=True), training={"steps": 1}, data={"eval": str(place / "eval.jsonl")}
    )
    assert train_run(run, resume=False).state == "finished"
    (smoke,) = run.events("smoke")
    assert len(smoke["losses"]) == 2
    assert not (run.path / "smoke").exists()


def test_a_rehearsal_that_fails_ends_the_run_with_its_own_error(make_run):
    run = make_run(options=Options(smoke=True), training={"seq_len": 12})
    with pytest.raises(LoracleError) as raised:
        train_run(run, resume=False)
    assert raised.value.code == "E027"
    assert not any(run.events("step"))


def test_a_random_state_that_these_versions_cannot_read_is_left_out_and_said(make_run):
    """Its pickle may hold objects of an older numpy, which a safe load refuses."""
    import datetime

    run = make_run(training={"steps": 4})
    stop_after(run, 1)
    step = train_run(run, resume=False).step
    written = checkpoints.writing_path(run.checkpoints) / "again"
    shutil.move(checkpoints.checkpoint_path(run.checkpoints, step), written)
    torch.save({"python": datetime.date(2020, 1, 1)}, written / "rng_state.pth")
    (written / "manifest.json").unlink()
    checkpoints.finish(written, run.checkpoints, step, recipe_hash="", world_size=1)
    assert train_run(run, resume=True).state == "finished"
    assert [event["event"] for event in run.events("rng_lost")] == ["rng_lost"]


def test_the_evaluation_loss_counts_every_token_once(reference, place):
    """Trainer's own is a mean of batch means: wrong where answers differ in length."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from loracle.catalog.datasets import read_dataset
    from loracle.jobs.train.templates import IGNORED, encode

    step = [event["step"] for event in reference.events("evaluated")][-1]
    folder = reference.checkpoints / f"step-{step:06d}"
    base = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    total = count = 0
    for sample in read_dataset(place / "eval.jsonl").samples:
        encoded = encode(tokenizer, sample)
        labels = torch.tensor(encoded.labels[1:])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits = model(torch.tensor([encoded.input_ids])).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(
            logits, labels, ignore_index=IGNORED, reduction="sum"
        ).item()
        count += int((labels != IGNORED).sum())
    reported = [event["eval_loss"] for event in reference.events("evaluated")][-1]
    assert reported == pytest.approx(total / count, rel=1e-5)
