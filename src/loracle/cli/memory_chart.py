"""The memory of a training step as a chart of characters."""

import sys
from collections.abc import Sequence

from loracle.cli.say import Speaker
from loracle.planner.memory_curve import MemoryCurve
from loracle.units import GIB

HEIGHT = 12
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def memory_chart(curve: MemoryCurve, speaker: Speaker) -> list[str]:
    """Lines of the chart: an axis in GiB on the left, the phases below."""
    top = curve.peak_bytes * 1.05
    lines = []
    for row in range(HEIGHT, 0, -1):
        label = f"{top * row / HEIGHT / GIB:6.1f}" if row % 3 == 0 else " " * 6
        cells = "".join(_cell(point / top * HEIGHT - (row - 1)) for point in curve.points)
        lines.append(f"  {label} {_edge()}{cells}")
    lines.append(f"  {'0.0':>6} {_corner()}{_floor() * len(curve.points)}")
    lines.append(" " * 10 + _phases(curve, speaker))
    return lines


def _cell(height: float) -> str:
    if not _unicode():
        return "#" if height >= 0.5 else " "
    return _EIGHTHS[max(0, min(8, round(height * 8)))]


def _phases(curve: MemoryCurve, speaker: Speaker) -> str:
    """Names of the phases where they start, as far as there is room."""
    from rich.cells import cell_len, set_cell_size

    width = len(curve.points)
    cells: list[tuple[int, str]] = []
    free_from = 0
    for stretch in curve.stretches:
        start = round(stretch.start * width)
        name = speaker.text(f"phase.{stretch.phase}")
        if stretch.phase == "batch" or start < free_from:
            continue
        cells.append((start, name))
        free_from = start + cell_len(name) + 1
    line = ""
    for start, name in cells:
        line = set_cell_size(line, start) + name
    return line


def _unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _edge() -> str:
    return "│" if _unicode() else "|"


def _corner() -> str:
    return "└" if _unicode() else "+"


def _floor() -> str:
    return "─" if _unicode() else "-"


def owner_rows(
    owners: Sequence[tuple[object, int]], peak: float, most: int = 12
) -> list[tuple[object, int, float]]:
    """The largest owners with their share of the peak, and the rest as one (owner None)."""
    rows: list[tuple[object, int, float]] = [
        (owner, size, size / peak) for owner, size in owners[:most]
    ]
    rest = sum(size for _, size in owners[most:])
    if rest:
        rows.append((None, rest, rest / peak))
    return rows
