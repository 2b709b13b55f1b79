"""From a file to rows as they stand in it: JSONL, JSON, CSV or Parquet, with their lines.

A row that cannot be read is yielded as a problem in its place, so that every row is counted.
Faults that hide where the next row starts (a broken JSON array, an open quote in CSV) end the
reading with one error instead.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loracle.catalog.datasets.encoding import detect_encoding, read_lines, read_text
from loracle.catalog.datasets.jsontext import (
    JsonFault,
    parse_json,
    parse_next,
    without_trailing_commas,
)
from loracle.catalog.datasets.samples import RowProblem
from loracle.errors import DataError, MissingExtra

CONTAINERS = ("jsonl", "json", "csv", "parquet")
_SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet",
}  # fmt: skip
_PARQUET_BATCH = 4096


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it stands in the file; `repaired` names what was mended, `value` None if dropped."""

    line: int | None
    value: Mapping[str, Any] | None
    repaired: str = ""


def raw_rows(
    path: Path, *, encoding: str | None = None, repair: bool = False
) -> Iterator[RawRow | RowProblem]:
    """Every row of a file in order; problems carry line and column, and row 0 (not yet numbered).

    With `repair`, trailing commas are read over and a cut-off last line is dropped, both named in
    `RawRow.repaired`.

    Raises:
        DataError: E021 unknown kind of file, E022 encoding, E023 a fault that hides later rows.
        MissingExtra: Parquet without pyarrow.
    """
    kind = container_of(path)
    if kind == "parquet":
        return _parquet_rows(path)
    if kind == "csv":
        return _csv_rows(path, encoding)
    if kind == "json":
        return _json_rows(path, encoding, repair)
    return _jsonl_rows(path, encoding, repair)


def container_of(path: Path) -> str:
    """jsonl, json, csv or parquet, by suffix and, for JSON, by the first characters.

    Many a `.json` holds one object a line, and some `.jsonl` one array; both are read as what
    they are.
    """
    kind = _SUFFIXES.get(path.suffix.lower())
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(b"PAR1"):
        return "parquet"
    if kind in ("csv", "parquet"):
        return kind
    text = head.decode(detect_encoding(path), errors="replace").lstrip("\ufeff \t\r\n")
    if text.startswith("["):
        return "json"
    if kind == "json":
        return "jsonl" if _is_whole_object(text.splitlines()[0] if text else "") else "json"
    if kind == "jsonl" or text.startswith("{"):
        return "jsonl"
    raise DataError("error.data.container", code="E021", hint="hint.data.container", path=str(path))


def _is_whole_object(line: str) -> bool:
    """Whether a line holds a row of JSONL (an object that ends in it), not the start of a file."""
    try:
        value, _ = parse_next(line, 0)
    except JsonFault:
        return False
    return isinstance(value, dict) and not any(_is_table(entry) for entry in value.values())


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(
        isinstance(row, dict) and not {"role", "from"} & row.keys() for row in value
    )  # fmt: skip


def _jsonl_rows(path: Path, encoding: str | None, repair: bool) -> Iterator[RawRow | RowProblem]:
    unfinished: RowProblem | None = None
    for number, line in read_lines(path, encoding):
        if not line.strip():
            continue
        if unfinished is not None:
            yield unfinished
            unfinished = None
        row = parse_line(line, number, repair)
        if isinstance(row, RowProblem) and row.reason == "truncated":
            unfinished = row
        else:
            yield row
    if unfinished is not None and repair:
        yield RawRow(unfinished.line, None, "truncated_last_line")
    elif unfinished is not None:
        yield RowProblem(
            reason="truncated_last_line", row=0, line=unfinished.line, column=unfinished.column
        )


def parse_line(line: str, number: int | None = None, repair: bool = False) -> RawRow | RowProblem:
    """One line of JSONL; `number` is its place in the file, None where that is not known."""
    repaired = ""
    try:
        value = parse_json(line)
    except JsonFault as fault:
        if not (repair and fault.reason == "trailing_comma"):
            return _problem(fault, number, fault.position + 1)
        try:
            value, repaired = parse_json(without_trailing_commas(line)), "trailing_comma"
        except JsonFault as second:
            return _problem(second, number, second.position + 1)
    if not isinstance(value, dict):
        return RowProblem(reason="not_an_object", row=0, line=number, detail=_kind(value))
    return RawRow(number, value, repaired)


def _problem(fault: JsonFault, line: int | None, column: int) -> RowProblem:
    return RowProblem(reason=fault.reason, row=0, line=line, column=column, detail=fault.detail)


def _json_rows(path: Path, encoding: str | None, repair: bool) -> Iterator[RawRow | RowProblem]:
    text = read_text(path, encoding)
    repaired = ""
    body = text.lstrip()
    if body.startswith("{"):
        yield from _wrapped_rows(path, text)
        return
    if not body.startswith("["):
        raise DataError(
            "error.data.container", code="E021", hint="hint.data.container", path=str(path)
        )
    if repair and (mended := without_trailing_commas(text)) != text:
        text, repaired = mended, "trailing_comma"
    for value, line in _array_items(path, text):
        if isinstance(value, dict):
            yield RawRow(line, value, repaired)
            repaired = ""
        else:
            yield RowProblem(reason="not_an_object", row=0, line=line, detail=_kind(value))


def _array_items(path: Path, text: str) -> Iterator[tuple[Any, int]]:
    """(value, line) of each element of a JSON array; raises DataError E023 at a fault."""
    position = text.index("[") + 1
    line, counted = 1, 0
    needs_comma = False
    while True:
        position = _skip_space(text, position)
        line += text.count("\n", counted, position)
        counted = position
        here = text[position : position + 1]
        if here == "]":
            break
        if needs_comma:
            if here != ",":
                reason = "truncated" if not here else "syntax"
                raise _fatal(path, text, JsonFault(reason, position, here))
            position = _skip_space(text, position + 1)
            if text[position : position + 1] == "]":
                comma = text.rindex(",", 0, position)
                raise _fatal(path, text, JsonFault("trailing_comma", comma))
            line += text.count("\n", counted, position)
            counted = position
        try:
            value, position = parse_next(text, position)
        except JsonFault as fault:
            raise _fatal(path, text, fault) from fault
        yield value, line
        needs_comma = True
    if text[position + 1 :].strip():
        raise _fatal(path, text, JsonFault("extra_data", _skip_space(text, position + 1)))


def _wrapped_rows(path: Path, text: str) -> Iterator[RawRow | RowProblem]:
    """Rows of `{"data": [...]}`: an object with exactly one list of objects, or one row."""
    try:
        value = parse_json(text)
    except JsonFault as fault:
        raise _fatal(path, text, fault) from fault
    tables = [entry for entry in value.values() if _is_table(entry)]
    if len(tables) == 1:
        for row in tables[0]:
            yield RawRow(None, row)
        return
    yield RawRow(1, value)


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def _fatal(path: Path, text: str, fault: JsonFault) -> DataError:
    line = text.count("\n", 0, fault.position) + 1
    column = fault.position - (text.rfind("\n", 0, fault.position) + 1) + 1
    return DataError(
        "error.data.json",
        code="E023",
        hint="hint.data.repair" if fault.reason == "trailing_comma" else "hint.data.json",
        path=str(path),
        line=line,
        column=column,
        reason=fault.reason,
        detail=fault.detail,
    )


def _csv_rows(path: Path, encoding: str | None) -> Iterator[RawRow | RowProblem]:
    csv.field_size_limit(2**31 - 1)
    lines = (line + "\n" for _, line in read_lines(path, encoding))
    first = next(lines, "")
    if not first.strip():
        return
    delimiter = max("\t;,", key=first.count)
    reader = csv.reader(_chain(first, lines), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        if twice := {name for name in header if header.count(name) > 1}:
            raise DataError(
                "error.data.csv_header", code="E023", path=str(path), names=sorted(twice)
            )
        line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                detail = f"{len(fields)}/{len(header)}"
                yield RowProblem(reason="csv_fields", row=0, line=line, detail=detail)
            elif fields:
                yield RawRow(line, dict(zip(header, fields, strict=True)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            "error.data.csv", code="E023", path=str(path), line=reader.line_num, cause=str(error)
        ) from error


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _parquet_rows(path: Path) -> Iterator[RawRow | RowProblem]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra("parquet", "pyarrow") from error
    try:
        for batch in ParquetFile(path).iter_batches(batch_size=_PARQUET_BATCH):
            for value in batch.to_pylist():
                yield RawRow(None, value)
    except (ArrowException, OSError) as error:
        cause = str(error).splitlines()[0]
        raise DataError("error.data.parquet", code="E023", path=str(path), cause=cause) from error


def _kind(value: object) -> str:
    """JSON's name of a value's type."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return "null" if value is None else names.get(type(value), "object")
