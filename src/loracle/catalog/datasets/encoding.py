"""What bytes a data file is made of: UTF-8 and UTF-16 are read, others named with the offset.

Files exported by Excel or old Windows tools arrive as UTF-16, GBK or Latin-1. Reading GBK as
Latin-1 gives text without an error and a model without sense, so a guess is named, never used.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path

from loracle.errors import DataError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD_BYTES = 65536


def detect_encoding(path: Path) -> str:
    """utf-8, utf-8-sig, utf-16, utf-16-le, utf-16-be or utf-32, by byte-order mark or by NULs."""
    with path.open("rb") as file:
        head = file.read(4096)
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd > len(head) // 8 and odd > 4 * even:
        return "utf-16-le"
    if even > len(head) // 8 and even > 4 * odd:
        return "utf-16-be"
    return "utf-8"


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a text file, streamed.

    Lines end at newline only: U+2028 and other separators belong to the text.

    Raises:
        DataError: E022, a byte that the encoding does not know, with its offset and a guess.
    """
    name = encoding or detect_encoding(path)
    if name in ("utf-8", "utf-8-sig"):
        yield from _utf8_lines(path)
        return
    number = 0
    try:
        with path.open(encoding=name, newline="") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeError as error:
        raise _wrong_encoding(path, name, getattr(error, "start", 0), number + 1) from error
    except LookupError as error:
        raise DataError("error.data.unknown_encoding", code="E022", encoding=name) from error


def read_text(path: Path, encoding: str | None = None) -> str:
    """The whole text of a file, without a byte-order mark; raises DataError E022."""
    name = encoding or detect_encoding(path)
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig" if name == "utf-8" else name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong_encoding(path, name, error.start, line) from error
    except LookupError as error:
        raise DataError("error.data.unknown_encoding", code="E022", encoding=name) from error


def _utf8_lines(path: Path) -> Iterator[tuple[int, str]]:
    offset = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            body = raw[3:] if number == 1 and raw.startswith(codecs.BOM_UTF8) else raw
            try:
                yield number, body.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                start = offset + len(raw) - len(body) + error.start
                raise _wrong_encoding(path, "utf-8", start, number) from error
            offset += len(raw)


def _wrong_encoding(path: Path, encoding: str, offset: int, line: int) -> DataError:
    return DataError(
        "error.data.encoding",
        code="E022",
        hint="hint.data.encoding",
        path=str(path),
        encoding=encoding,
        offset=offset,
        line=line,
        guess=_guess(path, offset),
    )


def _guess(path: Path, offset: int) -> str:
    """The likely encoding of bytes that are not UTF-8: GBK where they decode to Chinese."""
    with path.open("rb") as file:
        file.seek(max(0, offset - 1))
        sample = file.read(_HEAD_BYTES)
    if sample.count(0) > len(sample) // 4:
        return "utf-16"
    start = 0 if offset == 0 else 1
    text = sample[start:].decode("gbk", errors="replace")
    foreign = [char for char in text if ord(char) > 0x7F]
    chinese = sum(_is_chinese(char) for char in foreign)
    return "gbk" if foreign and chinese >= 0.9 * len(foreign) else "latin-1"


def _is_chinese(char: str) -> bool:
    """Han characters and the punctuation that goes with them."""
    return (
        "\u4e00" <= char <= "\u9fff" or "\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uffef"
    )
