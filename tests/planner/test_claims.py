"""Every claim of the articles is listed, and each verdict follows from figures, not from a list."""

import pytest

from loracle import words
from loracle.catalog.claims import CHECKERS, load_claims
from loracle.domain.estimate import Range
from loracle.planner.claims import check_claims
from loracle.planner.claims.bench import bench
from loracle.planner.claims.check import CHECKS, Compared
from loracle.planner.claims.figures import Figure

IDS = [
    "A-M1", "A-M2", "A-M3", "A-M4", "A-M5", "A-M6", "A-M7", "A-M8", "A-M9", "B-M1", "B-M2",
    "B-M3", "B-M4", "A-S1", "A-S2", "A-S3", "B-S1", "B-S2", "B-S3", "B-S4", "A-P1", "A-P2",
    "A-P3", "A-P4", "A-P5", "A-P6", "A-P7", "A-P8", "B-P1", "B-P2", "A-R1", "A-R2", "A-R3",
    "A-R4", "A-R5", "A-R6", "A-R7", "A-R8", "B-R1", "B-R2", "A-T1", "A-T2", "A-T3", "A-T4",
    "A-T5", "A-T6", "A-V1", "A-V2", "A-V3", "A-V4", "B-V1", "B-V2", "B-V3", "B-V4",
]  # fmt: skip


@pytest.fixture(scope="module")
def checked():
    return {one.id: one for one in check_claims(load_claims(), bench("2026-01-15"))}


def test_every_claim_is_there_once():
    assert [claim.id for claim in load_claims()] == IDS


def test_every_claim_has_its_sentence_and_its_checker():
    for claim in load_claims():
        assert words.has(f"claim.{claim.id}")
        assert claim.by in CHECKERS
        assert (claim.by == "plan") <= (claim.id in CHECKS)


def test_figures_match_what_is_stated(checked):
    for claim in load_claims():
        names = [one.name for one in checked[claim.id].compared]
        assert names == (list(claim.stated) if claim.id in CHECKS else [])


@pytest.mark.parametrize(
    ("stated", "ours", "agrees"),
    [
        ((10, 14), Range(9, 12, 15), True),
        ((10, 14), Range(14.05, 15, 16), True),  # stated to three digits
        ((10, 14), Range(15, 16, 17), False),
        ((0, 4), Range(4.4, 4.6, 4.9), False),
        ((5, 1000), Range.exact(2), False),
    ],
)
def test_the_verdict_follows_from_the_figures(stated, ours, agrees):
    assert Compared(name="x", stated=stated, figure=Figure(ours)).agrees is agrees


def test_the_price_ladder_is_the_articles(checked):
    ours = {one.name: one.figure.ours.likely for one in checked["A-P3"].compared}
    assert ours == {"month": 2800, "quarter": 2660, "year": 2240, "year_renewed": 2140}


def test_seventy_billion_on_40_gib_is_contradicted_by_measured_runs(checked):
    assert checked["A-M9"].status == "contradicted"
    ours = {one.name: one.figure.ours.likely for one in checked["A-M9"].compared}
    assert ours["plain_trainer_gb"] == pytest.approx(38.85, abs=0.05)  # 36.2 GiB


def test_what_a_plan_cannot_know_is_left_to_others(checked):
    assert checked["A-V3"].status == "out_of_reach"
    assert checked["A-T4"].by == "evaluate"
