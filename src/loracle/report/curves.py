"""Line charts as plain SVG: no script, no font, no network; drawn once for page and print.

One chart is a panel with its own vertical axis. Panels of one soak share the horizontal axis, so
the eye finds the second at which clock, power and speed fell together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 132
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 22, 22
COLOURS = ("#1f6feb", "#b35900", "#1a7f37", "#8250df", "#cf222e", "#57606a", "#0a7ea4", "#9a6700")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One named curve; gaps where a value is None."""

    name: str
    seconds: Sequence[float]
    values: Sequence[float | None]


def chart(title: str, lines: Sequence[Line], *, spans: Sequence[tuple[float, float]] = ()) -> str:
    """One panel as an `<svg>` element, empty without data; `spans` are shaded, in seconds."""
    known = [value for line in lines for value in line.values if value is not None]
    if not known:
        return ""
    low, high = _nice(min(known), max(known))
    end = max(second for line in lines for second in line.seconds)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="name" x="{LEFT}" y="14">{escape(title)}</text>',
        *(_span(start, stop, end) for start, stop in spans),
        *_grid(low, high, end),
        *(_path(line, at, low, high, end) for at, line in enumerate(lines)),
        *(_legend(lines) if len(lines) > 1 else ()),
        "</svg>",
    ]
    return "\n".join(parts)


def _nice(low: float, high: float) -> tuple[float, float]:
    """Ends of the axis: a little room, and a flat curve still shows as one."""
    room = max(0.08 * (high - low), 0.05 * abs(high), 1e-9)
    return max(0.0, low - room) if low >= 0 else low - room, high + room


def _x(second: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * second / max(end, 1e-9)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)


def _grid(low: float, high: float, end: float) -> list[str]:
    parts = []
    for step in range(3):
        value = low + (high - low) * step / 2
        y = _y(value, low, high)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            + _text(LEFT - 6, y + 4, "end", f"{value:,.0f}")
        )
    seconds = [end * step / 6 for step in range(7)]
    return parts + [_text(_x(one, end), HEIGHT - 6, "middle", f"{one:.0f}") for one in seconds]


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _span(start: float, stop: float, end: float) -> str:
    x, width = _x(start, end), max(1.0, _x(stop, end) - _x(start, end))
    return (
        f'<rect class="event" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/>'
    )


def _path(line: Line, at: int, low: float, high: float, end: float) -> str:
    steps: list[str] = []
    drawn = False
    for second, value in zip(line.seconds, line.values, strict=True):
        if value is None:
            drawn = False
            continue
        steps.append(f"{'L' if drawn else 'M'}{_x(second, end):.1f},{_y(value, low, high):.1f}")
        drawn = True
    dash = f' stroke-dasharray="{DASHES[at % 8]}"' if DASHES[at % 8] else ""
    return f'<path d="{" ".join(steps)}" stroke="{COLOURS[at % 8]}"{dash}/>'


def _legend(lines: Sequence[Line]) -> list[str]:
    parts, x = [], WIDTH - RIGHT - 78 * len(lines)
    for at, line in enumerate(lines):
        dash = f' stroke-dasharray="{DASHES[at % 8]}"' if DASHES[at % 8] else ""
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="10" y2="10" stroke="{COLOURS[at % 8]}"{dash} '
            f'stroke-width="2"/>' + _text(x + 27, 14, "start", escape(line.name))
        )
        x += 78
    return parts
