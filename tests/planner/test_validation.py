"""Predicted against measured: pairs, verdicts, and the summary's arithmetic."""

from dataclasses import replace

import pytest

from loracle.catalog.gpus import find_gpu
from loracle.catalog.measured import setup_of, shipped_runs
from loracle.domain.estimate import MemoryEstimate, Range, SpeedEstimate
from loracle.errors import UnsupportedModel
from loracle.planner.engines import Answer, formula_engine
from loracle.planner.validation import compare, document, summary

RUN = next(run for run in shipped_runs() if run.id == "h200a-01")
GIB = 1 << 30


def engine(low, likely, high, tokens_per_s=None, played=None):
    """An engine that answers the same for every run."""

    def answer(setup, gpu, cap_bytes):
        bounds = Range(low * GIB, likely * GIB, high * GIB)
        memory = MemoryEstimate(
            engine="fixed", model_bytes=1, allocated_bytes=bounds, reserved_bytes=bounds,
            device_bytes=bounds, peak_phase="backward",
        )  # fmt: skip
        if tokens_per_s is None:
            return Answer(memory=memory, fits=played)
        speed = SpeedEstimate(
            engine="fixed", step_seconds=Range.exact(1),
            tokens_per_s=Range(tokens_per_s * 0.5, tokens_per_s, tokens_per_s * 1.5),
        )  # fmt: skip
        return Answer(memory=memory, speed=speed)

    return answer


def runs(*, cap_gib=None, fits=True, **changes):
    cap = None if cap_gib is None else int(cap_gib * GIB)
    return [replace(RUN, memory_cap_bytes=cap, fits=fits, **changes)]


@pytest.mark.parametrize(
    ("cap", "fits", "verdict"),
    [(21, True, "right"), (21, False, "wrong"), (15, True, "risky"), (15, False, "risky"),
     (9, True, "wrong"), (9, False, "right"), (20, True, "right")],
)  # fmt: skip
def test_verdicts(cap, fits, verdict):
    found = compare(runs(cap_gib=cap, fits=fits), setup_of, find_gpu, engine(10, 15, 20))
    assert found[0].verdict == verdict


@pytest.mark.parametrize(("played", "verdict"), [(True, "right"), (False, "wrong")])
def test_a_cap_that_was_played_out_is_never_risky(played, verdict):
    found = compare(runs(cap_gib=15), setup_of, find_gpu, engine(10, 15, 20, played=played))
    assert found[0].verdict == verdict


def test_a_row_without_a_limit_has_no_verdict():
    found = compare(runs(), setup_of, lambda name: None, engine(10, 15, 20))
    assert found[0].verdict is None
    assert summary(found)["memory"]["fit"] == {"n": 0, "right": 0, "risky": 0, "wrong": 0}


def test_errors_are_signed_in_rows_and_absolute_in_the_summary():
    measured = int(12 * GIB)
    found = compare(
        [*runs(peak_allocated_bytes=measured), *runs(peak_allocated_bytes=2 * measured)],
        setup_of, find_gpu, engine(10, 15, 20),
    )  # fmt: skip
    assert [round(one.memory["allocated"].error_pct, 6) for one in found] == [25, -37.5]
    assert summary(found)["memory"]["allocated"] == {
        "n": 2, "mean_abs_pct": 31.25, "median_abs_pct": 31.25, "max_abs_pct": 37.5,
    }  # fmt: skip


def test_speeds_of_jittery_runs_are_left_out():
    rows = [
        *runs(tokens_per_s=1000.0, step_spread=0.1),
        *runs(tokens_per_s=1000.0, step_spread=0.2),
        *runs(tokens_per_s=2000.0, step_spread=None),
        *runs(tokens_per_s=None),
    ]
    figures = summary(compare(rows, setup_of, find_gpu, engine(1, 2, 3, 1200.0)))["speed"]
    assert (figures["n"], figures["unsteady"], figures["spread_unknown"]) == (2, 1, 1)
    assert figures["mean_abs_pct"] == 30  # 20 and 40
    assert figures["within_25_pct"] == 50
    assert figures["inside_range_pct"] == 50  # 600..1800 holds 1000 but not 2000


def test_a_row_that_cannot_be_predicted_is_named():
    def refuse(setup, gpu, cap_bytes):
        raise UnsupportedModel("error.shape.unknown", model="x", model_type="y")

    found = compare(runs(), setup_of, find_gpu, refuse)
    figures = summary(found)
    assert figures["skipped"] == 1
    assert figures["memory"]["allocated"]["n"] == 0
    assert figures["memory"]["allocated"]["mean_abs_pct"] is None
    assert document(found, "formula")["runs"][0]["skipped"]["code"] == "E033"


def test_the_formula_meets_its_figures_on_the_shipped_runs():
    figures = summary(compare(shipped_runs(), setup_of, find_gpu, formula_engine))
    memory = figures["memory"]
    assert memory["allocated"]["n"] == memory["reserved"]["n"] == 39
    assert memory["allocated"]["mean_abs_pct"] <= 0.2
    assert memory["allocated"]["max_abs_pct"] <= 1
    assert memory["reserved"]["mean_abs_pct"] <= 2
    assert memory["fit"]["wrong"] == 0
    assert figures["skipped"] == 0
