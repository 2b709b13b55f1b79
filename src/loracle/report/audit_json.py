"""The audit as one JSON document: base units, ids, and English for those who read it raw."""

from dataclasses import asdict

from loracle.domain.audit import SCHEMA, AuditReport, Check
from loracle.domain.plan import Hint
from loracle.report.wording import phrase


def audit_document(report: AuditReport) -> dict[str, object]:
    """`loracle.audit/1`: never translated; serial numbers, hosts and addresses are not in it."""
    document: dict[str, object] = {"schema": SCHEMA, "outcome": report.outcome}
    document["exit_code"] = report.exit_code
    plain = asdict(report)
    plain["checks"] = [_check(check) for check in report.checks]
    for name in ("verdict",):
        plain[name] = _hint(report.verdict)
    for name in ("questions", "limits"):
        plain[name] = [_hint(hint) for hint in getattr(report, name)]
    return document | plain


def _check(check: Check) -> dict[str, object]:
    plain = asdict(check)
    for name in ("found", "expected", "means"):
        plain[name] = _hint(getattr(check, name))
    return plain


def _hint(hint: Hint | None) -> dict[str, object] | None:
    if hint is None:
        return None
    return {"id": hint.id, "values": dict(hint.values), "text": phrase(hint, "en")}
