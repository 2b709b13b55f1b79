"""Read a data set: files to samples, with every row accounted for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain, islice
from pathlib import Path
from typing import Any

from loracle.catalog.datasets.encoding import detect_encoding
from loracle.catalog.datasets.formats import FORMATS, BadRow, detect_format, read_row, used_keys
from loracle.catalog.datasets.rows import RawRow, container_of, parse_line, raw_rows
from loracle.catalog.datasets.samples import DataReport, DataSet, RowProblem, Sample
from loracle.errors import DataError, InputError, Problem

MAX_PROBLEMS = 20
_ROWS_TO_DETECT_BY = 1000


def read_dataset(
    source: str | Path,
    *,
    format: str = "auto",  # noqa: A002 - the recipe's word
    skip_bad: bool = False,
    repair: bool = False,
    encoding: str | None = None,
    max_rows: int | None = None,
) -> DataSet:
    """All samples of a file, a folder or a glob pattern, in file order.

    A bad row is an error unless `skip_bad`; then it is left out and counted in the report.
    `repair` reads over trailing commas and drops a cut-off last line, both counted.

    Raises:
        InputError: E013, no such file, or no file matches the pattern.
        DataError: E020 bad rows (`problems` has the first ones), E021 kind of file, E022 encoding,
            E023 a fault that hides later rows, E024 no rows, E025 no known format.
        MissingExtra: Parquet without pyarrow.
    """
    paths = data_files(source)
    numbered = _numbered(paths, encoding, repair)
    if max_rows is not None:
        numbered = islice(numbered, max_rows)
    return _dataset(numbered, paths, format, skip_bad, encoding)


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of JSONL that was picked from somewhere in a file."""

    file: str
    text: str


def dataset_of_lines(
    lines: Sequence[RawLine],
    paths: tuple[Path, ...],
    *,
    format: str = "auto",  # noqa: A002 - the recipe's word
    skip_bad: bool = False,
) -> DataSet:
    """Samples of picked lines, checked as `read_dataset` does; their line numbers are not known."""
    numbered = ((one.file, number, parse_line(one.text)) for number, one in enumerate(lines, 1))
    return _dataset(numbered, paths, format, skip_bad, None)


def _dataset(
    numbered: "Iterator[Row]",
    paths: tuple[Path, ...],
    wanted: str,
    skip_bad: bool,
    encoding: str | None,
) -> DataSet:
    source = ", ".join(str(path) for path in paths[:3])
    chosen, rows = _format_of(numbered, wanted, source)
    tally = _Tally()
    samples = tuple(_samples(rows, chosen, tally))
    report = tally.report(paths, chosen, encoding, len(samples))
    if report.num_rows == 0:
        raise DataError("error.data.empty", code="E024", path=source)
    if report.num_bad and not (skip_bad and samples):
        raise bad_rows_error(report)
    return DataSet(samples=samples, report=report)


def data_files(source: str | Path) -> tuple[Path, ...]:
    """The files that a path, a folder or a glob pattern stands for, sorted; raises InputError."""
    text = str(source)
    path = Path(text).expanduser()
    if path.is_file():
        return (path,)
    if path.is_dir():
        suffixes = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
        found = tuple(sorted(one for one in path.iterdir() if one.suffix.lower() in suffixes))
    else:
        found = tuple(sorted(Path(name) for name in glob(str(path), recursive=True)))
    if not found:
        pattern = path.is_dir() or has_magic(text)
        message = "error.data.no_match" if pattern else "error.missing_file"
        raise InputError(message, code="E013", path=text)
    return found


def bad_rows_error(report: DataReport) -> DataError:
    """E020 with the first bad rows as problems and the count by reason."""
    return DataError(
        "error.data.bad_rows",
        code="E020",
        hint="hint.data.skip_bad",
        problems=[row_problem(one) for one in report.problems],
        num_bad=report.num_bad,
        num_rows=report.num_rows,
        reasons=dict(report.bad),
    )


def row_problem(problem: RowProblem) -> Problem:
    """A row's fault as an error of the tree: message `data.reason.<reason>`."""
    return Problem(
        f"data.reason.{problem.reason}",
        code="E020",
        place=place_of(problem),
        key=problem.key,
        detail=problem.detail,
        row=problem.row,
        line=problem.line,
        column=problem.column,
        file=problem.file,
    )


def place_of(problem: RowProblem) -> str:
    """`file:line:column`, as compilers write it; `file[row]` where there are no lines."""
    if problem.line is None:
        return f"{problem.file}[{problem.row}]"
    column = f":{problem.column}" if problem.column is not None else ""
    return f"{problem.file}:{problem.line}{column}"


class _Tally:
    """Counts while the samples stream by."""

    def __init__(self) -> None:
        self.rows = 0
        self.bad: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.problems: list[RowProblem] = []
        self.keys: set[str] = set()

    def note(self, problem: RowProblem) -> None:
        self.bad[problem.reason] += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def report(
        self, paths: tuple[Path, ...], chosen: str, encoding: str | None, num_samples: int
    ) -> DataReport:
        unused = tuple(sorted(self.keys - used_keys(chosen)))
        return DataReport(
            files=tuple(str(path) for path in paths),
            format=chosen,
            encoding=encoding or _encoding_of(paths[0]),
            num_rows=self.rows,
            num_samples=num_samples,
            bad=dict(self.bad),
            repaired=dict(self.repaired),
            problems=tuple(self.problems),
            unused_keys=unused,
            num_bytes=sum(path.stat().st_size for path in paths),
        )


def _encoding_of(path: Path) -> str:
    return "binary" if container_of(path) == "parquet" else detect_encoding(path)


Row = tuple[str, int, RawRow | RowProblem]


def _numbered(paths: Iterable[Path], encoding: str | None, repair: bool) -> Iterator[Row]:
    number = 0
    for path in paths:
        for row in raw_rows(path, encoding=encoding, repair=repair):
            number += 1
            yield str(path), number, row


def _format_of(rows: Iterator[Row], wanted: str, source: str) -> tuple[str, Iterator[Row]]:
    """The format of a data set and its rows, those looked at included."""
    if wanted != "auto":
        if wanted not in FORMATS:
            raise DataError(
                "error.data.format_name", code="E025", format=wanted, known=", ".join(FORMATS)
            )
        return wanted, rows
    head = list(islice(rows, _ROWS_TO_DETECT_BY))
    values = [row.value for _, _, row in head if isinstance(row, RawRow) and row.value is not None]
    found = detect_format(values)
    if found is None and values:
        raise DataError(
            "error.data.format",
            code="E025",
            hint="hint.data.format",
            path=str(source),
            keys=", ".join(sorted({str(key) for value in values for key in value})) or "-",
        )
    return found or "text", chain(head, rows)


def _samples(rows: Iterator[Row], chosen: str, tally: _Tally) -> Iterator[Sample]:
    for file, number, row in rows:
        tally.rows += 1
        if isinstance(row, RowProblem):
            tally.note(replace(row, row=number, file=file))
            continue
        if row.repaired:
            tally.repaired[row.repaired] += 1
        if row.value is None:
            continue
        sample = _sample(row.value, chosen, file, number, row.line)
        if isinstance(sample, RowProblem):
            tally.note(sample)
            continue
        tally.keys.update(row.value)
        yield sample


def _sample(
    value: Mapping[str, Any], chosen: str, file: str, number: int, line: int | None
) -> Sample | RowProblem:
    try:
        return Sample(row=number, file=file, line=line, **read_row(value, chosen))
    except BadRow as bad:
        return RowProblem(
            reason=bad.reason, row=number, file=file, line=line, key=bad.key, detail=bad.detail
        )
