"""Every shipped recording ends as it says it must: exit code, verdict, and exactly its alarms."""

import pytest

from loracle.catalog.fingerprints import load_fingerprints, sold_as
from loracle.domain.audit import AuditReport
from loracle.jobs.audit import Case, Options, Replay, judge, load_recording, observe, shipped
from loracle.jobs.audit.healthy import healthy
from loracle.jobs.audit.judges.case import worst


def audited(document: dict) -> AuditReport:
    sold = sold_as(document["sold"]) if document.get("sold") else None
    return judge(Case(seen=observe(Replay(document), Options()), sold=sold))


def statuses(report: AuditReport) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for check in report.checks:
        found.setdefault(check.code, []).append(check.status)
    return {code: worst(*several) for code, several in found.items()}


def alarms(report: AuditReport) -> dict[str, str]:
    return {code: one for code, one in statuses(report).items() if one in ("warn", "fail")}


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_recording_ends_as_it_says(path):
    document = load_recording(path)
    report = audited(document)
    expect = document["expect"]
    assert alarms(report) == {c: s for c, s in expect["codes"].items() if s in ("warn", "fail")}
    named = {code: statuses(report)[code] for code in expect["codes"]}
    assert named == expect["codes"]
    assert (report.exit_code, report.keep) == (expect["exit"], expect["keep"])


def test_there_are_enough_recordings_and_half_are_faults():
    exits = [load_recording(path)["expect"]["exit"] for path in shipped()]
    assert len(exits) >= 24
    assert exits.count(2) >= 24


RENTED = [card for card in load_fingerprints() if card.family != "mining"]


@pytest.mark.parametrize("card", RENTED, ids=lambda card: card.id)
def test_healthy_card_of_every_fingerprint_passes(card):
    report = audited(healthy(card))
    assert alarms(report) == {}
    assert report.keep == "keep"


@pytest.mark.parametrize("card", RENTED, ids=lambda card: card.id)
def test_four_healthy_cards_pass_together(card):
    report = audited(healthy(card, 4))
    assert alarms(report) == {}


def test_mining_card_never_passes():
    for card in load_fingerprints():
        if card.family == "mining":
            assert audited(healthy(card)).exit_code == 2
