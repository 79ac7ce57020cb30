"""Files -> lines: plain or gzip, streamed, strict UTF-8; and pairs of lines from two files or from
columns.

A line ends at LF or CRLF only: U+2028, form feed and lone CR are text. A byte order mark at the
start of a file is dropped. Anything that cannot be read is a DataError with file and line. Only one
line is in memory at a time.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from weft.core.errors import DataError

Source = str | Path | IO[bytes]
"""A path, '-' for standard input, or a file opened in binary mode."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_lines(source: Source, allow_empty: bool = False) -> Iterator[str]:
    """The lines of one source without their line endings. An empty source is a DataError unless
    `allow_empty`."""
    name = source_name(source)
    number = 0
    for number, raw in enumerate(raw_lines(source, name), start=1):
        yield decode_line(raw, name, number)
    if number == 0 and not allow_empty:
        raise DataError("is empty: there is no line to read. Check that it was written.", name)


def read_many(sources: Iterable[Source]) -> Iterator[str]:
    """The lines of several sources, one after the other."""
    for source in sources:
        yield from read_lines(source)


def read_pairs(source: Source, target: Source) -> Iterator[tuple[str, str]]:
    """Line n of one source with line n of the other. Different line counts are a DataError with
    both numbers."""
    counts = [0, 0]
    for pair in zip_longest(read_lines(source), read_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, pair, strict=True)]
        if counts[0] == counts[1]:
            yield pair
    if counts[0] != counts[1]:
        raise DataError(
            f"has {counts[0]} lines, but {source_name(target)} has {counts[1]}: line n of one must "
            "belong to line n of the other. Make the two files equally long.",
            source_name(source),
        )


def read_columns(source: Source, columns: tuple[int, ...] = (1, 2)) -> Iterator[tuple[str, ...]]:
    """Columns (counted from 1) of a file with tabs between them. A row with too few is a DataError
    with its line."""
    name = source_name(source)
    for number, line in enumerate(read_lines(source), start=1):
        cells = line.split("\t")
        if len(cells) < max(columns):
            raise DataError(
                f"has {len(cells)} columns, but column {max(columns)} is wanted. "
                "Columns are separated by one tab; fix the line or name other columns.",
                name,
                number,
            )
        yield tuple(cells[column - 1] for column in columns)


def source_name(source: Source) -> str:
    """The name of a source in messages."""
    if isinstance(source, str | Path):
        return "standard input" if str(source) == "-" else str(source)
    return str(getattr(source, "name", "input"))


def raw_lines(source: Source, name: str) -> Iterator[bytes]:
    """Lines as bytes, endings included, decompressed. A broken archive is a DataError with the line
    it broke at."""
    number = 0
    try:
        with open_source(source, name) as reader, unzipped(reader) as file:
            for number, raw in enumerate(file, start=1):
                line = raw if number > 1 else raw.removeprefix(BYTE_ORDER_MARK)
                if line:
                    yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        message = f"the gzip archive is damaged ({error}). Make it again."
        raise DataError(message, name, number + 1) from None


def open_source(source: Source, name: str) -> io.BufferedReader:
    """A binary reader. Closing it does not close standard input or the caller's file."""
    if not isinstance(source, str | Path):
        return io.BufferedReader(RawReader(source))
    if str(source) == "-":
        return io.BufferedReader(RawReader(sys.stdin.buffer))
    try:
        return Path(source).open("rb")
    except FileNotFoundError:
        raise DataError("there is no such file. Check the path.", name) from None
    except IsADirectoryError:
        raise DataError("this is a folder. Name the text files in it.", name) from None
    except PermissionError:
        raise DataError("may not be read by this user. Change its permissions.", name) from None


@contextmanager
def unzipped(reader: io.BufferedReader) -> Iterator[Iterable[bytes]]:
    """The reader, decompressed if its first two bytes are those of gzip."""
    if reader.peek(2)[:2] != GZIP_MAGIC:
        yield reader
        return
    with gzip.open(reader) as file:
        yield file


class RawReader(io.RawIOBase):
    """Raw binary input from any object that has `read`."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = getattr(self.file, "read1", self.file.read)
        data = read(len(buffer))
        if isinstance(data, str):
            raise DataError(
                "was opened as text. Open it in binary mode ('rb').", source_name(self.file)
            )
        buffer[: len(data)] = data
        return len(data)


def decode_line(raw: bytes, name: str, number: int) -> str:
    """One line without its ending; bytes that are not UTF-8 are a DataError with their position."""
    raw = raw.removesuffix(b"\r\n") if raw.endswith(b"\r\n") else raw.removesuffix(b"\n")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        is_utf16 = number == 1 and raw[:2] in UTF16_MARKS
        guess = "The file looks like UTF-16; convert" if is_utf16 else "Convert"
        raise DataError(
            f"byte {raw[error.start]:#04x} at byte {error.start + 1} of the line is not UTF-8 "
            f"({error.reason}). {guess} it to UTF-8, for example with iconv.",
            name,
            number,
        ) from None
