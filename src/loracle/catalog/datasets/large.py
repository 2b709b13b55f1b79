"""Files too large to read for a plan: a stated sample of their lines, and a range for the rest.

A plan needs the tokens of a 20 GB file to a few percent, now. Lines are read at evenly spaced
places, checked like all others, and the file's size over their mean length gives the rows.
Training and evaluation read such files whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from loracle.catalog.datasets.encoding import detect_encoding
from loracle.catalog.datasets.reader import RawLine, data_files, dataset_of_lines
from loracle.catalog.datasets.rows import container_of
from loracle.catalog.datasets.samples import DataSet
from loracle.domain.estimate import Range

LARGE_BYTES = 1 << 29
_WINDOWS, _WINDOW_BYTES = 256, 1 << 17
_ERRORS = 3.0  # standard errors to either side


@dataclass(frozen=True, slots=True)
class LargeSample:
    """Sampled rows of a large set; `rows` is how many the whole set has, `read_share` of bytes."""

    data: DataSet
    rows: Range
    read_share: float


def is_large(source: str | Path) -> bool:
    """Whether a set is to be sampled: JSONL in UTF-8 of more than `LARGE_BYTES`."""
    paths = data_files(source)
    if sum(path.stat().st_size for path in paths) <= LARGE_BYTES:
        return False
    return all(
        container_of(path) == "jsonl" and detect_encoding(path).startswith("utf-8")
        for path in paths
    )


def sample_large(
    source: str | Path,
    *,
    format: str = "auto",  # noqa: A002 - the recipe's word
    skip_bad: bool = False,
) -> LargeSample:
    """Read about 32 MB of lines spread over the files; raises what `read_dataset` raises."""
    paths = data_files(source)
    total = sum(path.stat().st_size for path in paths)
    windows: list[tuple[int, int]] = []  # lines and bytes of each
    lines: list[RawLine] = []
    for path in paths:
        share = path.stat().st_size / total
        for window in _windows(path, max(2, round(_WINDOWS * share))):
            windows.append((len(window), sum(size for _, size in window)))
            lines += [RawLine(str(path), text) for text, _ in window]
    data = dataset_of_lines(lines, paths, format=format, skip_bad=skip_bad)
    good = len(data.samples) / len(lines)
    read = sum(size for _, size in windows)
    return LargeSample(data, _rows(windows, total).scaled(good), read / total)


def _windows(path: Path, count: int) -> Iterator[list[tuple[str, int]]]:
    """Lines (without blank ones) from evenly spaced places, with the bytes each takes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for index in range(count):
            file.seek(size * index // count)
            if index:
                file.readline()  # the rest of a line that began before
            taken: list[tuple[str, int]] = []
            read = 0
            while read < _WINDOW_BYTES and (raw := file.readline()):
                read += len(raw)
                if raw.strip():
                    taken.append((raw.decode("utf-8-sig").rstrip("\r\n"), len(raw)))
            if taken:
                yield taken


def _rows(windows: list[tuple[int, int]], total_bytes: int) -> Range:
    """Rows of the whole set: a ratio estimate over windows with its standard error."""
    lines = sum(count for count, _ in windows)
    read = sum(size for _, size in windows)
    rate = lines / read
    residuals = sum((count - rate * size) ** 2 for count, size in windows)
    error = sqrt(residuals / max(1, len(windows) - 1) / len(windows)) / (lines / len(windows))
    return Range.around(rate * total_bytes, min(0.9, _ERRORS * error), _ERRORS * error)
