"""Tables that fit the terminal: the least needed columns go first, and the reader is told."""

from collections.abc import Sequence

from loracle.cli.output import Column, Output


def narrow_table(
    output: Output,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    least_needed: Sequence[int],
    dim: Sequence[int] = (),
) -> None:
    """Print a table without as many of the `least_needed` columns as it takes to fit.

    Markdown has no width and keeps them all.
    """
    keep = list(range(len(columns)))
    dropped: list[int] = []
    if output.mode != "md":
        width = output.console().width
        for index in least_needed:
            if _width(columns, rows, keep) <= width:
                break
            keep.remove(index)
            dropped.append(index)
    output.table(
        [columns[index] for index in keep],
        [[row[index] for index in keep] for row in rows],
        dim=dim,
    )
    if dropped:
        names = ", ".join(columns[index].heading for index in dropped)
        output.note(output.text("table.left_out", names=names))


def _width(columns: Sequence[Column], rows: Sequence[Sequence[str]], keep: Sequence[int]) -> int:
    from rich.cells import cell_len

    widths = (
        max(cell_len(columns[index].heading), *(cell_len(row[index]) for row in rows), 0)
        for index in keep
    )
    return sum(widths) + 2 * (len(keep) - 1)
