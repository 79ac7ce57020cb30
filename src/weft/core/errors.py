"""Exceptions of Weft.

    WeftError (a ValueError)      errors that a user can correct
      |- ConfigError   invalid settings; lists all problems
      |- DataError     a file or line that cannot be used; names file and line
      |    |- DiskError   a file that cannot be written; also an OSError
      |    |- UnreadableError   a file that may be there, but cannot be read
      |- LockedError   another process is writing to the same place
      |- UsageError    an invalid call (prompt too long, wrong kind of model)
    EngineError (a RuntimeError)  an engine step or a worker process failed

A message has four parts: what is wrong, the value, what is allowed, what to do. Internal errors are
asserts that print both values and are not in this tree.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_SHOWN = 80
"""Characters of a value in a message."""
MAX_QUOTED = 300
"""Characters of a library's message in a message."""
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG}
"""The errno of a disk that is full or fails."""
ADVICE = {
    errno.EMFILE: "Close other files, or raise the limit (`ulimit -n`)",
    errno.ENFILE: "End other programs that have files open",
    errno.EACCES: "Check who may write there, or use another folder",
    errno.EPERM: "Check who may write there, or use another folder",
    errno.ESTALE: "Check the connection to the server of the files",
}
"""What to do about an errno of a file that cannot be opened; no disk is full or fails."""


def shown(value: object) -> str:
    """repr of a value for a message; in a damaged file a value may be very long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return f"a value of type {type(value).__name__} with an integer of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def shortened(error: BaseException) -> str:
    """The message of a library's error for a message, which may quote what is in a file."""
    text = str(error)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


class WeftError(ValueError):
    """Base class. The command line prints its message without a traceback."""


@dataclass(frozen=True)
class Problem:
    """One problem of the settings, and the dotted names of the settings concerned."""

    text: str
    about: tuple[str, ...] = ()


class ConfigError(WeftError):
    """Invalid settings. `problems` lists all of them, so that they can be fixed in one go."""

    def __init__(self, problems: Iterable[Problem | str], where: str = "settings") -> None:
        self.problems = [p if isinstance(p, Problem) else Problem(p) for p in problems]
        assert self.problems, "a ConfigError needs at least one problem"
        lines = [p.text for p in self.problems]
        if len(lines) == 1:
            super().__init__(lines[0])
        else:
            bullets = "\n".join(f"  - {line}" for line in lines)
            super().__init__(f"{len(lines)} problems in the {where}:\n{bullets}")


class DataError(WeftError):
    """A file that cannot be used. The message names the file and, if known, the line (from 1)."""

    def __init__(
        self, message: str, path: str | Path | None = None, line: int | None = None
    ) -> None:
        self.path, self.line = path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(place + message)


class DiskError(DataError, OSError):
    """A file that could not be written, such as on a disk that is full or fails. What is there is
    the old content or the new, never a part."""

    def __init__(self, number: int, path: str | Path | None = None) -> None:
        reason = os.strerror(number)
        advice = ADVICE.get(number, "Free some space, check the disk, or use another one")
        DataError.__init__(
            self,
            f"cannot be written ({reason}). What was there before is not damaged. {advice}, and "
            "run it again.",
            path,
        )
        self.number = self.errno = number
        self.strerror = reason

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[type[DiskError], tuple[int, str | Path | None]]:
        """Errors are sent between the processes of a run."""
        return type(self), (self.number, self.path)


class UnreadableError(DataError):
    """A file that may be there, but could not be read: it is neither missing nor known to be
    damaged, so that nothing must be replaced or removed because of it."""

    def __init__(self, reason: str, path: str | Path | None = None) -> None:
        super().__init__(
            f"cannot be read ({reason}). Nothing was changed. Check the disk and who may read the "
            "file, and run it again.",
            path,
        )
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnreadableError], tuple[str, str | Path | None]]:
        """Errors are sent between the processes of a run."""
        return type(self), (self.reason, self.path)


class LockedError(WeftError):
    """Another process is writing to the same folder or file."""


class UsageError(WeftError):
    """An invalid call."""


class EngineError(RuntimeError):
    """An engine step or a worker process failed; the requests that it affected are removed."""
