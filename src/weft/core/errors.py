"""Every error that a person can cause, as one tree.

    WeftError (a ValueError)
      |- ConfigError   settings that cannot work; carries every problem at once
      |- DataError     a file or line that cannot be used; names file and line
      |- UsageError    a call that makes no sense (over-long prompt, wrong kind of model)

Each sentence has four parts: what, the value, what is allowed, what to do. Errors that we cause
ourselves are plain asserts with both numbers and are not in this tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class WeftError(ValueError):
    """The root: one sentence for a person. The command line prints it without a traceback."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with settings, and the dotted names of the ones it is about."""

    text: str
    about: tuple[str, ...] = ()


class ConfigError(WeftError):
    """Settings that cannot work. `problems` lists all of them, so that nobody mends one per run."""

    def __init__(self, problems: Iterable[Problem | str], where: str = "settings") -> None:
        self.problems = [p if isinstance(p, Problem) else Problem(p) for p in problems]
        assert self.problems, "a ConfigError without a problem says nothing"
        lines = [p.text for p in self.problems]
        if len(lines) == 1:
            super().__init__(lines[0])
        else:
            bullets = "\n".join(f"  - {line}" for line in lines)
            super().__init__(f"{len(lines)} problems in the {where}:\n{bullets}")


class DataError(WeftError):
    """A file that cannot be used. Says which file and, where there is one, which line (from 1)."""

    def __init__(
        self, message: str, path: str | Path | None = None, line: int | None = None
    ) -> None:
        self.path, self.line = path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}, line {line}: "
        super().__init__(place + message)


class UsageError(WeftError):
    """A call that cannot be answered as it was made."""
