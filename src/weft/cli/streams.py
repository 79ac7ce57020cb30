"""Standard streams of a command: UTF-8, closed streams, and write errors.

A closed stream is replaced by the null device, so that its file descriptor is not reused by another
file. Status lines that cannot be written are dropped: a training run or a server does not end
because the disk of its log is full. Results that cannot be written are an error.
"""

from __future__ import annotations

import io
import os
import sys

from weft.core.errors import DISK_ERRORS

STDERR = 2


class StatusFile(io.FileIO):
    """A file that drops what a full or failing disk, or a terminal that is gone, does not take."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            return len(data)


def prepare_streams() -> None:
    """Use UTF-8 for all streams, whatever the locale is, and open those that are closed."""
    open_closed()
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        file: io.RawIOBase = StatusFile(STDERR, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True)
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "strict"), (sys.stderr, None)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors or "backslashreplace")


def open_closed() -> None:
    """Open the null device for each of the three streams that is closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)


def close_stdout() -> None:
    """Discard buffered output after an error of writing, so that Python exits without another."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, io.UnsupportedOperation):
        return
