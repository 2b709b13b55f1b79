"""The memory of a training step as an SVG picture: one file, no fonts or scripts from elsewhere."""

from collections.abc import Callable
from xml.sax.saxutils import escape

from loracle.planner.memory_curve import MemoryCurve
from loracle.units import GIB

WIDTH, HEIGHT = 960, 460
LEFT, TOP, RIGHT, BOTTOM = 64, 56, 24, 56
BANDS = {
    "forward": "#dbe9f6", "backward": "#fbe3d0", "recompute": "#fbe3d0", "optimizer": "#dff0dc",
    "evaluation": "#ece5f3",
}  # fmt: skip
CURVE, FILL, INK, GRID, LIMIT = "#1f4e79", "#8fb7d9", "#222222", "#d0d0d0", "#b03030"


def memory_svg(
    curve: MemoryCurve,
    title: str,
    phase_name: Callable[[str], str],
    *,
    usable_bytes: float | None = None,
    usable_label: str = "",
) -> str:
    """The picture as text. `usable_bytes` draws the card's limit, where it is in sight."""
    top = max(curve.peak_bytes * 1.08, 0.0)
    if usable_bytes is not None and usable_bytes < curve.peak_bytes * 2:
        top = max(top, usable_bytes * 1.05)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="16">{escape(title)}</text>',
        *_bands(curve, phase_name),
        *_grid(top),
        _area(curve, top),
    ]
    if usable_bytes is not None and usable_bytes <= top:
        parts += _limit(usable_bytes, top, usable_label)
    return "\n".join([*parts, "</svg>", ""])


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(num_bytes: float, top: float) -> float:
    return HEIGHT - BOTTOM - num_bytes / top * (HEIGHT - TOP - BOTTOM)


def _bands(curve: MemoryCurve, phase_name: Callable[[str], str]) -> list[str]:
    parts = []
    for stretch in curve.stretches:
        colour = BANDS.get(stretch.phase)
        if colour is None:
            continue
        left, right = _x(stretch.start), _x(stretch.end)
        parts.append(
            f'<rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}" fill="{colour}"/>'
        )
        if right - left > 48:
            middle = (left + right) / 2
            parts.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">'
                f"{escape(phase_name(stretch.phase))}</text>"
            )
    return parts


def _grid(top: float) -> list[str]:
    step = _step(top / GIB)
    parts = []
    level = 0.0
    while level * GIB <= top:
        y = _y(level * GIB, top)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level:g}</text>'
        )  # fmt: skip
        level += step
    parts.append(f'<text x="{LEFT - 8}" y="{TOP - 10}" text-anchor="end">GiB</text>')
    return parts


def _step(top_gib: float) -> float:
    """A round distance of grid lines: 4 to 8 of them."""
    for step in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 10.0, 20.0, 50.0):
        if top_gib / step <= 8:
            return step
    return 100.0


def _area(curve: MemoryCurve, top: float) -> str:
    count = len(curve.points)
    outline = " ".join(
        f"{_x((index + 0.5) / count):.1f},{_y(point, top):.1f}"
        for index, point in enumerate(curve.points)
    )
    floor = _y(0, top)
    first, last = _x(0.5 / count), _x((count - 0.5) / count)
    return (
        f'<polygon points="{first:.1f},{floor:.1f} {outline} {last:.1f},{floor:.1f}" '
        f'fill="{FILL}" fill-opacity="0.7" stroke="none"/>'
        f'<polyline points="{outline}" fill="none" stroke="{CURVE}" stroke-width="2"/>'
    )


def _limit(usable_bytes: float, top: float, label: str) -> list[str]:
    y = _y(usable_bytes, top)
    return [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LIMIT}" '
        'stroke-width="2" stroke-dasharray="6 4"/>',
        f'<text x="{WIDTH - RIGHT}" y="{y - 6:.1f}" text-anchor="end" fill="{LIMIT}">'
        f"{escape(label)}</text>",
    ]
