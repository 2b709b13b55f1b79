"""The audit as one self-contained HTML page, made for a refund claim.

It holds the offer as typed, times in UTC, every expectation with its source and the command that
repeats the measurement, and the soak's curves. It loads nothing and says nothing about who rented
what where: hashes only.
"""

from html import escape

from loracle import words
from loracle.domain.audit import AuditReport, Check, SoakCurve
from loracle.report.curves import Line, chart
from loracle.report.wording import duration as length_of
from loracle.report.wording import merged, phrase, rescore_line, source, title

LIMITING = 0x8 | 0x20 | 0x40 | 0x80  # slowdown, heat, power brake

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--page:#fff;--band:#f6f8fa;
--pass:#1a7f37;--warn:#9a6700;--fail:#cf222e}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--line:#3d444d;--page:#0d1117;
--band:#151b23;--pass:#3fb950;--warn:#d29922;--fail:#f85149}}
body{margin:0 auto;max-width:1080px;padding:28px 24px 48px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI","PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:30px 0 8px}
.verdict{font-size:17px;margin:12px 0 18px;padding:12px 16px;border:1px solid var(--line);
border-left:6px solid var(--dim);border-radius:6px;background:var(--band)}
.verdict.pass{border-left-color:var(--pass)}.verdict.warn{border-left-color:var(--warn)}
.verdict.fail{border-left-color:var(--fail)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;min-width:760px;table-layout:fixed;font-size:14px}
th{text-align:left;font-weight:600;color:var(--dim)}
th:nth-child(1){width:3.5em}th:nth-child(2){width:19%}th:nth-child(3),th:nth-child(4){width:25%}
th,td{padding:6px 10px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.group{font-weight:600;padding-top:16px;border-bottom:none}
td small{color:var(--dim);display:block;overflow-wrap:anywhere}
td.state{font-weight:600;white-space:nowrap}.pass .state{color:var(--pass)}
.warn .state{color:var(--warn)}.fail .state{color:var(--fail)}
.unknown,.skipped{color:var(--dim)}
code{font:12.5px/1.4 ui-monospace,Menlo,Consolas,monospace}
svg{display:block;width:100%;height:auto;margin:0 0 6px}svg path{fill:none;stroke-width:1.8}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
svg text.name{font-weight:600;fill:var(--ink)}
svg .grid{stroke:var(--line)}svg .event{fill:var(--fail);opacity:.14}
ul{margin:4px 0;padding-left:20px}footer{margin-top:34px;color:var(--dim);font-size:13px}
@media print{body{max-width:none;padding:0;font-size:12px}.wide{overflow:visible}
tr,svg{break-inside:avoid}}
"""


def audit_page(report: AuditReport, language: str) -> str:
    """The page as text, in `en` or `zh-CN`."""
    body = [
        f"<h1>{_word('title', language)}</h1>",
        _verdict(report, language),
        _facts(report, language),
        _alarms(report, language),
        f"<h2>{_word('curves', language)}</h2>",
        _curves(report.soak, language),
        f"<h2>{_word('evidence', language)}</h2>",
        _evidence(merged(report.checks), language),
        _list("audit.ask", [phrase(one, language) for one in report.questions], language),
        _list("audit.cannot_prove", [phrase(one, language) for one in report.limits], language),
        _footer(report, language),
    ]
    head = (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_word('title', language)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(part for part in body if part) + "\n</body>\n</html>\n"


def _word(name: str, language: str) -> str:
    return escape(words.text(f"audit.report.{name}", language))


def _verdict(report: AuditReport, language: str) -> str:
    scored = rescore_line(report, language)
    more = f"<br>{escape(scored)}" if scored else ""
    kind = "fail" if report.outcome == "fail" else report.outcome
    return f'<div class="verdict {kind}">{escape(phrase(report.verdict, language))}{more}</div>'


def _facts(report: AuditReport, language: str) -> str:
    cards = "; ".join(
        f"{card.name} ({card.device_id or '?'}, {card.uuid_hash or '-'})" for card in report.cards
    )
    software = ", ".join(f"{name} {version}" for name, version in report.software.items())
    rows = [
        ("offer", report.sold or words.text("audit.report.no_offer", language)),
        ("when", report.started_at),
        ("length", length_of(report.seconds, language)),
        ("cards", cards or "-"),
        ("machine", report.machine_hash),
        ("software", software or "-"),
    ]
    items = "\n".join(
        f"<dt>{_word(name, language)}</dt><dd>{escape(value)}</dd>" for name, value in rows
    )
    return f"<dl>\n{items}\n</dl>"


def _alarms(report: AuditReport, language: str) -> str:
    """What warns or fails, worst first: the part that a provider has to answer."""
    loud = sorted(
        (row for row in merged(report.checks) if row[0].status in ("warn", "fail")),
        key=lambda row: row[0].status != "fail",
    )
    if not loud:
        return ""
    return f"<h2>{_word('alarms', language)}</h2>\n" + _evidence(loud, language, plain=True)


def _evidence(found: list[tuple[Check, str]], language: str, *, plain: bool = False) -> str:
    """Checks and the cards they speak of as a table, by group unless `plain`."""
    heads = ("check", "found", "expected", "means")
    columns = "".join(
        f"<th>{escape(words.text(f'audit.head.{one}', language))}</th>" for one in heads
    )
    rows = []
    group = ""
    for check, cards in found:
        if check.group != group and not plain:
            group = check.group
            name = escape(words.text(f"audit.group.{group}", language))
            rows.append(f'<tr><td class="group" colspan="5">{name}</td></tr>')
        rows.append(_row(check, cards, language))
    return (
        f'<div class="wide"><table><thead><tr><th></th>{columns}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _row(check: Check, cards: str, language: str) -> str:
    state = escape(words.text(f"audit.status.{check.status}", language))
    which = ""
    if cards:
        card = words.text("audit.card", language)
        which = (
            f" ({words.text('audit.all_cards', language) if cards == '*' else f'{card} {cards}'})"
        )
    expected = escape(phrase(check.expected, language))
    cited = source(check, language)
    if cited:
        expected += f"<small>{escape(cited)}</small>"
    means = escape(phrase(check.means, language))
    found = escape(phrase(check.found, language))
    if check.repeat and check.status != "skipped":
        found += f"<small>{_word('repeat', language)}: <code>{escape(check.repeat)}</code></small>"
    return (
        f'<tr class="{check.status}"><td class="state">{state}</td>'
        f"<td>{escape(title(check, language) + which)}<small><code>{check.code}</code></small></td>"
        f"<td>{found}</td><td>{expected}</td><td>{means}</td></tr>"
    )


def _curves(curves: tuple[SoakCurve, ...], language: str) -> str:
    if not curves:
        return f"<p>{_word('no_soak', language)}</p>"
    card = words.text("audit.card", language)
    several = len(curves) > 1

    def lines(values: str, factor: float = 1.0) -> list[Line]:
        return [
            Line(
                name=f"{card} {curve.device}" if several else "",
                seconds=curve.seconds,
                values=[None if one is None else one * factor for one in getattr(curve, values)],
            )
            for curve in curves
            if getattr(curve, values)
        ]

    spans = [span for curve in curves for span in _limited(curve)]
    panels = [
        chart(words.text(f"audit.report.{name}", language), lines(values, factor), spans=spans)
        for name, values, factor in (
            ("rate", "flops_per_s", 1e-12),
            ("clock", "sm_mhz", 1.0),
            ("temperature", "celsius", 1.0),
            ("power", "watts", 1.0),
        )
    ]
    note = f"<p><small>{_word('events', language)}</small></p>" if spans else ""
    return "\n".join(panel for panel in panels if panel) + note


def _limited(curve: SoakCurve) -> list[tuple[float, float]]:
    """Stretches of seconds in which the card limited itself."""
    spans: list[tuple[float, float]] = []
    before = 0.0
    for second, bits in zip(curve.seconds, curve.events, strict=False):
        if bits is not None and bits & LIMITING:
            if spans and spans[-1][1] == before:
                spans[-1] = (spans[-1][0], second)
            else:
                spans.append((before, second))
        before = second
    return spans


def _list(heading: str, sentences: list[str], language: str) -> str:
    if not sentences:
        return ""
    items = "\n".join(f"<li>{escape(one)}</li>" for one in sentences)
    return f"<h2>{escape(words.text(heading, language))}</h2>\n<ul>\n{items}\n</ul>"


def _footer(report: AuditReport, language: str) -> str:
    made = words.text(
        "audit.report.made_by",
        language,
        version=report.versions["loracle"],
        table=report.versions["fingerprints"],
    )
    return f"<footer>{escape(made)}. {_word('privacy', language)}</footer>"
