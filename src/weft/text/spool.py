"""Lines -> a uniform sample of them, bounded in bytes and kept on disk, so that memory stays flat.

Every line is kept with probability `share`, which starts at 1. When the kept lines outgrow the
limit, half of them are thinned out at random and `share` halves; each line of the corpus is then
still kept with the same probability. A reservoir in memory would do the same, but hold all of it;
here the trainer reads the sample from a temporary file, as often as it likes. The sample depends on
the lines, their order, the limit and the seed alone.
"""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

MAX_PIECE = 1 << 16
"""Characters of one record: a longer line is kept in parts, so that one line cannot fill the
sample."""
HEADER = struct.Struct("<I")


class LineSpool:
    """The sample. Iterating reads it from the start, in corpus order; closing removes it from
    disk."""

    def __init__(self, max_bytes: int, seed: int = 0) -> None:
        self.max_bytes = max_bytes
        self.random = random.Random(seed)
        self.share = 1.0
        self.seen_lines = self.kept_records = self.num_bytes = 0
        self.was_thinned = False
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()

    def fill(self, lines: Iterable[str]) -> LineSpool:
        """Offer every line, in order; afterwards at most `max_bytes` are kept."""
        for line in lines:
            self.seen_lines += 1
            for piece in pieces_of(line):
                if self.share == 1.0 or self.random.random() < self.share:
                    self.append(piece.encode("utf-8", "replace"))
        return self

    def append(self, record: bytes) -> None:
        self.file.write(HEADER.pack(len(record)))
        self.file.write(record)
        self.num_bytes += len(record)
        self.kept_records += 1
        while self.num_bytes > self.max_bytes and self.kept_records > 1:
            self.thin()

    def thin(self) -> None:
        """Keep a random half of the records."""
        old, self.file = self.file, tempfile.TemporaryFile()  # noqa: SIM115
        self.num_bytes = self.kept_records = 0
        self.share, self.was_thinned = self.share / 2, True
        with old:
            for record in records(old):
                if self.random.random() < 0.5:
                    self.file.write(HEADER.pack(len(record)) + record)
                    self.num_bytes += len(record)
                    self.kept_records += 1

    def __iter__(self) -> Iterator[str]:
        for record in records(self.file):
            yield record.decode("utf-8")

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> LineSpool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def records(file: IO[bytes]) -> Iterator[bytes]:
    """All records of a file, from its start. The file's position is at its end afterwards."""
    file.seek(0)
    while header := file.read(HEADER.size):
        yield file.read(HEADER.unpack(header)[0])


def pieces_of(line: str) -> Iterator[str]:
    """A line in parts of at most MAX_PIECE characters; an empty line has none."""
    for start in range(0, len(line), MAX_PIECE):
        yield line[start : start + MAX_PIECE]
