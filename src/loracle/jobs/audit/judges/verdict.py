"""From checks to a verdict, and what no test can settle."""

from collections.abc import Sequence

from loracle.domain.audit import Check
from loracle.domain.plan import Hint
from loracle.jobs.audit.judges.case import Case, say

_CARD_GROUPS = ("identity", "share", "memory", "load", "links")
_PHYSICS = ("LRA-ID-SM-COUNT", "LRA-LOAD-GEMM", "LRA-LOAD-BANDWIDTH", "LRA-MEM-PATTERN")


def keep(checks: Sequence[Check], case: Case) -> str:
    """keep, careful, fix (the renter can), return (the provider must), or untested.

    Without a card, or with one that could not be put to any work although nothing failed,
    nothing was tested; unless even the signs of a card are forged.
    """
    failed = [check for check in checks if check.status == "fail"]
    if not case.seen.cards:
        forged = any(check.group == "identity" for check in failed)
        return "return" if forged else "untested"
    if any(
        check.group in _CARD_GROUPS or (check.group == "software" and check.by == "provider")
        for check in failed
    ):
        return "return"
    if failed:
        return "fix"
    worked = any(
        check.code in _PHYSICS and check.status in ("pass", "warn") for check in checks
    )  # SM count alone comes from CUDA or NVML: something answered
    measured = any(
        card.gemm or card.bandwidth or card.pattern or card.timing for card in case.seen.cards
    )
    if not worked or not measured:
        return "untested"
    return "careful" if any(check.status == "warn" for check in checks) else "keep"


def verdict(checks: Sequence[Check], case: Case) -> Hint:
    """The sentence that the audit ends with."""
    outcome = keep(checks, case)
    made = [check for check in checks if check.status in ("pass", "warn", "fail")]
    if outcome == "untested" and not case.seen.cards:
        return say("verdict.no_card")
    return say(
        f"verdict.{outcome}",
        made=len(made),
        failed=sum(check.status == "fail" for check in checks),
        warned=sum(check.status == "warn" for check in checks),
        unknown=sum(check.status == "unknown" for check in checks),
    )


def questions(case: Case) -> tuple[Hint, ...]:
    """What to ask the provider, with what the machine shows; A-V2 and A-V3."""
    if not case.seen.cards:
        return ()
    first = case.seen.cards[0]
    expected = case.expected(first)
    asked = []
    if expected is not None and expected.family == "geforce":
        asked.append(say("question.geforce_licence", name=expected.name))
    worn = sum(
        int(first.number(key) or 0)
        for key in ("retired_single_bit", "retired_double_bit", "ecc_uncorrected_lifetime")
    )
    asked.append(say("question.used", counters=worn, vbios=first.text("vbios") or "-"))
    if first.text("serial_hash"):
        asked.append(say("question.serial", serial_hash=first.text("serial_hash")))
    else:
        asked.append(say("question.no_serial"))
    asked.append(say("question.refund"))
    if case.sold is not None and case.sold.part:
        asked.append(say("question.part"))
    return tuple(asked)


def limits(case: Case) -> tuple[Hint, ...]:
    """What this audit cannot prove."""
    if not case.seen.cards:
        return ()
    return (
        say("limit.quiet_neighbour"),
        say("limit.later_throttle", soak_seconds=case.seen.soaked_seconds),
        say("limit.tomorrow"),
    )
