"""The audit as a screen: one row a check, the worst kept apart, the verdict last."""

from typing import TYPE_CHECKING

from loracle.cli.output import Column, Output
from loracle.report.wording import duration, merged, phrase, rescore_line, title

if TYPE_CHECKING:
    from loracle.domain.audit import AuditReport, Check

_ASKED_FOR = (
    "LRA-ID-SOLD", "LRA-ID-SM-COUNT", "LRA-ID-MEMORY", "LRA-ID-FP64", "LRA-SHARE-MIG",
    "LRA-SHARE-IDLE", "LRA-SHARE-TIMING", "LRA-MEM-PATTERN", "LRA-MEM-PLAN", "LRA-LOAD-GEMM",
    "LRA-LOAD-BANDWIDTH", "LRA-LOAD-SOAK", "LRA-LOAD-TEMPERATURE", "LRA-LINK-COPY",
    "LRA-HOST-CORES", "LRA-HOST-RAM", "LRA-HOST-DISK-SPACE", "LRA-HOST-DISK-SPEED",
    "LRA-SW-TORCH", "LRA-SW-BNB",
)  # fmt: skip
_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "dim", "skipped": "dim"}


def show_audit(report: "AuditReport", output: Output, *, everything: bool = False) -> None:
    """The audit for people, as a table for `md`, or one line for `quiet`.

    What warns or fails is always there, with the checks that people ask about first; the rest
    is counted, and shown with `everything`.
    """
    language = output.language
    if output.mode == "quiet":
        output.line(f"{report.outcome}: {phrase(report.verdict, language)}")
        return
    output.line(_headline(report, output))
    output.line()
    heads = ("", "check", "found", "expected", "means")
    columns = [Column(output.text(f"audit.head.{one}") if one else "") for one in heads]
    shown, counted = [], []
    for check, cards in merged(report.checks):
        whole = everything or output.mode == "md" or _is_asked_for(check, cards)
        (shown if whole else counted).append((check, cards))
    rows = [_row(check, cards, output) for check, cards in shown]
    if output.mode == "md":
        output.table(columns, rows)
    else:
        _render(columns, rows, [check for check, _ in shown], output)
    if counted:
        rest = [check.status for check, _ in counted]
        counts = {name: rest.count(name) for name in ("unknown", "skipped")}
        output.line(output.text("audit.more", passed=rest.count("pass"), **counts))
    output.line()
    _endings(report, output)


def _is_asked_for(check: "Check", cards: str) -> bool:
    """Alarms always; what passed by name, and then for all cards or none."""
    if check.status in ("warn", "fail"):
        return True
    return check.status == "pass" and check.code in _ASKED_FOR and cards in ("", "*")


def _headline(report: "AuditReport", output: Output) -> str:
    names = [card.name for card in report.cards]
    software = report.software
    parts = [f"{len(names)} x {names[0]}" if names else output.text("audit.no_gpu")]
    if "driver" in software:
        parts.append(f"{output.text('audit.title.sw_driver')} {software['driver']}")
    if "torch" in software:
        parts.append(f"torch {software['torch']}")
    if report.replayed:
        parts.append(output.text("audit.replayed", name=report.replayed.rsplit("/", 1)[-1]))
    parts.append(duration(report.seconds, output.language))
    return ", ".join(parts)


def _row(check: "Check", cards: str, output: Output) -> tuple[str, str, str, str, str]:
    language = output.language
    name = title(check, language)
    if cards and cards != "*":
        name += f" ({output.text('audit.card')} {cards})"
    elif cards:
        name += f" ({output.text('audit.all_cards')})"
    return (
        output.text(f"audit.status.{check.status}"),
        name,
        phrase(check.found, language),
        phrase(check.expected, language),
        phrase(check.means, language),
    )


def _render(
    columns: list[Column], rows: list[tuple[str, ...]], checks: list["Check"], output: Output
) -> None:
    """A borderless table whose last column wraps; state is a word first, a colour second."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        table.add_column(
            Text(column.heading), no_wrap=at < 2, overflow="fold",
            ratio=None if at < 4 else 1, max_width=(None, None, 30, 26, None)[at],
        )  # fmt: skip
    for row, check in zip(rows, checks, strict=True):
        state = Text(row[0], style=_COLOURS[check.status])
        dim = "dim" if check.status == "unknown" else ""
        table.add_row(state, *(Text(cell, style=dim) for cell in row[1:]))
    output.render(table)


def _endings(report: "AuditReport", output: Output) -> None:
    """Verdict, measured time and cost, codes of failures, questions, limits."""
    language = output.language
    if report.cards or report.outcome == "fail":
        output.line(phrase(report.verdict, language))
    if line := rescore_line(report, language):
        output.line(line)
    for check, _ in merged(report.checks):
        if check.status == "fail":
            said = phrase(check.means, language) or phrase(check.found, language)
            output.line(f"{output.text('label.error')}[{check.code}]: {said}")
    if report.questions:
        output.line()
        output.line(f"{output.text('audit.ask')}:")
        for question in report.questions:
            output.line(f"- {phrase(question, language)}")
    if report.limits:
        said = "; ".join(phrase(one, language) for one in report.limits)
        output.line()
        output.line(f"{output.text('audit.cannot_prove')}: {said}")
