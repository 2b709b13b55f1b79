"""An audit's sentences: message ids and base units in, text in the reader's language out.

The unit of a value is the end of its name (`total_bytes`, `rate_flops_per_s`, `lost_share`), so
no check has to say how it is printed, and JSON keeps the bare number.
"""

from collections.abc import Callable, Mapping

from loracle import words
from loracle.domain.audit import AuditReport, Check
from loracle.domain.plan import Hint
from loracle.units import GB, GIB, MIB, money


def _memory(value: float) -> str:
    return f"{value / GIB:,.2f} GiB" if value >= GIB else f"{value / MIB:,.0f} MiB"


def _disk(value: float) -> str:
    return f"{value / GB:,.0f} GB" if value >= 10 * GB else f"{value / GB:,.1f} GB"


def _rate(value: float) -> str:
    if value >= 1e12:
        return f"{value / 1e12:,.2f} TB/s"
    return f"{value / 1e9:,.1f} GB/s" if value >= 1e9 else f"{value / 1e6:,.0f} MB/s"


def _flops(value: float) -> str:
    digits = 0 if value >= 1e14 else 1 if value >= 1e13 else 2
    return f"{value / 1e12:,.{digits}f} TFLOP/s"


def _share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def duration(seconds: float, language: str) -> str:
    """`4.2 s`, `48 s`, `12 min`, `3.8 h`."""
    if seconds < 120:
        text = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
        return words.text("unit.seconds", language, n=text)
    if seconds < 5400:
        return words.text("unit.minutes", language, n=f"{seconds / 60:.0f}")
    return words.text("unit.hours", language, n=f"{seconds / 3600:.1f}")


# the first ending that fits decides
_ENDINGS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("bytes_per_s", _rate),
    ("flops_per_s", _flops),
    ("disk_bytes", _disk),
    ("ram_bytes", _disk),
    ("bytes", _memory),
    ("share", _share),
    ("spread", _share),
    ("percent", lambda value: f"{value:.0f} %"),
    ("watts", lambda value: f"{value:,.0f} W"),
    ("celsius", lambda value: f"{value:.0f} °C"),
    ("mhz", lambda value: f"{value:,.0f} MHz"),
)


def shown(name: str, value: object, language: str) -> str:
    """One value as people read it, by its name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("seconds"):
        return duration(float(value), language)
    for ending, text in _ENDINGS:
        if name.endswith(ending):
            return text(float(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def phrase(hint: Hint | None, language: str) -> str:
    """The sentence of a hint; nothing for none."""
    if hint is None:
        return ""
    values: Mapping[str, str] = {
        name: shown(name, value, language) for name, value in hint.values.items()
    }
    return words.text(hint.id, language, **values)


def title(check: Check, language: str) -> str:
    """The name of a check."""
    return words.text("audit.title." + check.code[4:].lower().replace("-", "_"), language)


def source(check: Check, language: str) -> str:
    """Whose figure the expectation is."""
    known = check.source.startswith("audit.")
    return words.text(check.source, language) if known else check.source


def rescore_line(report: AuditReport, language: str) -> str:
    """Measured speed in the plan: new time and cost; empty without a plan."""
    scored = report.rescore
    if scored is None:
        return ""
    times = {
        "measured_seconds": duration(scored.measured_seconds, language),
        "planned_seconds": duration(scored.planned_seconds, language),
    }
    if scored.measured_cost is None or scored.planned_cost is None or scored.currency is None:
        return words.text("audit.rescore.line_no_cost", language, **times)
    return words.text(
        "audit.rescore.line",
        language,
        **times,
        measured_cost=money(scored.measured_cost, scored.currency),
        planned_cost=money(scored.planned_cost, scored.currency),
    )


def merged(checks: tuple[Check, ...]) -> list[tuple[Check, str]]:
    """Checks with the cards they speak of: one row where all cards agree on the outcome.

    The second entry is empty for the machine or a single card, `*` for all cards, else the
    card's number.
    """
    rows: list[tuple[Check, str]] = []
    codes = list(dict.fromkeys(check.code for check in checks))
    for code in codes:
        same = [check for check in checks if check.code == code]
        if len(same) == 1:
            rows.append((same[0], ""))
        elif len({check.status for check in same}) == 1:
            rows.append((same[0], "*"))
        else:
            rows += [(check, str(check.device)) for check in same]
    return rows
