"""Every event of a run says its sentence in both languages, with the values that it really has."""

from decimal import Decimal
from pathlib import Path

import pytest

from loracle.cli.output import Output
from loracle.cli.train_screen import comparison, duration, sentences, step_line
from loracle.jobs.runs import RunFolder
from loracle.jobs.train import watch

GIB = 2**30
PLAN = {"device_bytes": 9.4 * GIB, "allocated_bytes": 8.0 * GIB, "tokens_per_s": 3190.0}
STEP = {
    "time": "2026-11-30T10:00:00.000Z", "event": "step", "step": 412, "steps": 1190, "loss": 1.184,
    "tokens_per_s": 3035.0, "step_s": 11.3, "peak_bytes": 7.5 * GIB, "spent": "1.32",
    "currency": "CNY",
}  # fmt: skip
EVENTS = [
    {"event": "started", "card": "NVIDIA H200", "plan": PLAN},
    {"event": "started", "card": "cpu", "plan": None},
    {"event": "data", "part": "train", "samples": 640, "tokens": 42893, "label_tokens": 10604,
     "sequences": 183},
    {"event": "model_loaded", "seconds": 3.1},
    {"event": "resumed", "step": 12},
    {"event": "saved", "step": 12},
    {"event": "evaluated", "step": 12, "eval_loss": 1.25},
    {"event": "finished", "step": 12, "tokens_per_s": 3000.0, "peak_bytes": 7 * GIB, "plan": PLAN},
    {"event": "finished", "step": 12, "tokens_per_s": 300.0, "peak_bytes": None, "plan": None},
    *({"event": "stopped", "step": 12, "reason": reason}
      for reason in ("stop", "terminated", "budget", "not_finite")),
    {"event": "adapted", "step": 12, "changes": {"micro_batch": [2, 1], "grad_accum": [2, 4]}},
    {"event": "out_of_memory", "step": 12, "phase": "step", "peak_bytes": 7 * GIB, "plan_bytes": 1},
    {"event": "out_of_memory", "step": 12, "phase": "step", "peak_bytes": None, "plan_bytes": None},
    {"event": "checkpoint_broken", "step": 12, "file": "optimizer.pt"},
    {"event": "pad_chosen", "token": "<|pad|>"},
    {"event": "world_changed", "before": 1, "now": 2},
    {"event": "mirrored", "name": "step-000012"},
    {"event": "mirror_failed", "attempt": 1, "cause": "TimeoutError"},
    {"event": "then", "command": "poweroff"},
    {"event": "then_skipped"},
    {"event": "smoke", "seconds": 30.0},
    {"event": "rng_lost"},
    {"event": "replanned", "plan": PLAN},
    {"event": "reporter_failed", "name": "MLflow", "cause": "no route to host"},
    {"event": "check", "id": "kernel_leaks", "values": {"architecture": "stablelm"}},
    {"event": "check", "id": "packing_leaks",
     "values": {"architecture": "falcon", "packed": 13, "sequences": 40, "packed_steps": 4,
                "sequences_steps": 10}},
    {"event": "check", "id": "cut", "values": {"samples": 3, "seq_len": 64}},
    {"event": "check", "id": "unlabelled", "values": {"samples": 3, "seq_len": 64}},
    {"event": "check", "id": "unended", "values": {"samples": 3}},
    {"event": "check", "id": "memory_tight",
     "values": {"likely_gib": 9.0, "high_gib": 10.0, "free_gib": 9.5}},
]  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["event"])
def test_an_event_says_its_sentence(event, language):
    run = RunFolder(Path("runs/one"))
    said = sentences(Output(language=language), run, event | {"time": STEP["time"]})
    assert said
    for sentence in said:
        assert "{" not in sentence
        assert not sentence.startswith(("train.", "check.", "watch."))


def alarms():
    """One alarm of every rule, as the rules themselves make them."""
    base = {"step": 1, "loss": 2.0, "grad_norm": 1.0, "tokens_per_s": 100.0, "step_seconds": 1.0,
            "gpu_use": 0.9, "free_memory_share": 0.1, "spent": Decimal(1)}  # fmt: skip
    cases = [
        {"loss": float("nan")}, {"tokens_per_s": 50.0}, {"gpu_use": 0.4, "fetch_seconds": 0.5},
        {"gpu_use": 0.4, "collate_seconds": 0.5}, {"gpu_use": 0.4, "free_memory_share": 0.5},
        {"throttled": "thermal"}, {"throttled": "power"}, {"throttled": "hardware"},
        {"ecc_errors": 2}, {"xid": 79}, {"foreign_bytes": GIB}, {"spent": Decimal(50)},
    ]  # fmt: skip
    found = {}
    for case in cases:
        watcher = watch.Watch(
            watch.Expected(num_steps=4000, tokens_per_s_low=90.0, budget=Decimal(40),
                           currency="CNY", data_seconds=9000.0)
        )  # fmt: skip
        for step in range(1, 130):
            values = base | {"step": step, "spent": Decimal(step) / 10} | case
            found |= {alarm.id: alarm for alarm in watcher.look(watch.Reading(**values))}
    jump = watch.Watch(watch.Expected(num_steps=100))
    for step in range(1, 40):
        loss = 9.0 if step > 30 else 2.0
        found |= {a.id: a for a in jump.look(watch.Reading(**base | {"step": step, "loss": loss}))}
    return found


def test_every_alarm_can_be_said_with_the_values_that_it_has():
    found = alarms()
    assert sorted(found) == sorted(watch.alarm_ids())
    for alarm in found.values():
        values = {k: str(v) if isinstance(v, Decimal) else v for k, v in alarm.values.items()}
        for language in ("en", "zh-CN"):
            said = sentences(
                Output(language=language), RunFolder(Path("x")),
                {"event": "alarm", "alarm": alarm.id, "values": values},
            )  # fmt: skip
            assert len(said) == 2
            assert "{" not in "".join(said)


def test_a_line_for_logs_has_keys_and_is_never_translated():
    assert step_line(STEP) == (
        "step=412/1190 loss=1.1840 tok_per_s=3035 spent=1.32 peak_gib=7.50 eta_s=8791"
    )


def test_the_screen_holds_the_run_against_the_plan(capsys):
    from rich.console import Console

    console = Console(width=100, highlight=False)
    console.print(comparison(Output(language="en"), STEP, PLAN, 1.231))
    shown = capsys.readouterr().out
    assert "1.184  (eval 1.231)" in shown
    assert "3,035 tokens/s" in shown
    assert "3,190 tokens/s" in shown
    assert "5 % slower" in shown
    assert "7.5 GiB" in shown
    assert "0.5 GiB less" in shown
    assert "1.32 CNY" in shown
    assert "3.81 CNY" in shown  # 1.32 x 1190 / 412


@pytest.mark.parametrize(
    ("seconds", "text"), [(48, "48 s"), (300, "5 min"), (8760, "2 h 26 min"), (7200, "2 h 0 min")]
)
def test_a_duration_reads_well(seconds, text):
    assert duration(seconds) == text
