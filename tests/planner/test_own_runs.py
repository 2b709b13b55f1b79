"""Own measurements move the plan's speed for that card, and only for that card."""

from dataclasses import replace

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.measured import setup_of, shipped_runs
from loracle.domain.gpu import Node
from loracle.planner.laws import formula_laws
from loracle.planner.own_runs import own_speeds, with_own_speeds

LAWS = formula_laws()
ROW = next(run for run in shipped_runs() if run.num_gpus == 1 and run.fits)
GPU, OTHER = find_gpu("rtx-4090"), find_gpu("rtx-3090")


def run(factor, **changes):
    estimate = LAWS.speed(setup_of(ROW), GPU, Node(gpu_id=GPU.id)).tokens_per_s.likely
    made = replace(ROW, gpu="rtx-4090", tokens_per_s=factor * estimate, step_spread=0.05)
    return replace(made, **changes)


def test_the_card_gets_its_own_factor():
    own = own_speeds([run(0.8), run(0.9), run(0.7)], [GPU, OTHER], LAWS, setup_of)
    assert own["rtx-4090"].factor == pytest.approx(0.8)
    laws = with_own_speeds(LAWS, own)
    setup, node = setup_of(ROW), Node(gpu_id=GPU.id)
    before, after = LAWS.speed(setup, GPU, node), laws.speed(setup, GPU, node)
    assert after.tokens_per_s.likely == pytest.approx(0.8 * before.tokens_per_s.likely)
    assert after.step_seconds.likely == pytest.approx(before.step_seconds.likely / 0.8)
    assert after.tokens_per_s.low / after.tokens_per_s.likely == pytest.approx(0.7 / 0.8)
    assert "note.own_runs" in after.notes


def test_another_card_keeps_its_estimate():
    laws = with_own_speeds(LAWS, own_speeds([run(0.8)], [GPU, OTHER], LAWS, setup_of))
    setup, node = setup_of(ROW), Node(gpu_id=OTHER.id)
    assert laws.speed(setup, OTHER, node) == LAWS.speed(setup, OTHER, node)


@pytest.mark.parametrize(
    "changes", [{"step_spread": 0.5}, {"tokens_per_s": None}, {"gpu": "a card of dreams"},
                {"num_gpus": 2}]
)  # fmt: skip
def test_runs_that_say_nothing_of_speed_do_not_count(changes):
    assert own_speeds([run(0.8, **changes)], [GPU], LAWS, setup_of) == {}


def test_no_runs_no_change():
    assert with_own_speeds(LAWS, {}) is LAWS


def test_runs_on_this_computer_are_found(tmp_path, monkeypatch):
    """`loracle bench` writes; the next plan reads."""
    from loracle.catalog import user_runs
    from loracle.catalog.measured import write_run
    from loracle.planner.own_runs import user_laws

    file = tmp_path / "measured.jsonl"
    monkeypatch.setattr(user_runs, "user_runs_file", lambda: file)
    setup, node = setup_of(ROW), Node(gpu_id=GPU.id)
    before = user_laws([GPU]).speed(setup, GPU, node)
    assert before == LAWS.speed(setup, GPU, node)
    write_run(run(0.8), file)
    after = user_laws([GPU]).speed(setup, GPU, node)
    assert after.tokens_per_s.likely == pytest.approx(0.8 * before.tokens_per_s.likely)
