"""`TextReport`: counts of what happened to lines on their way to ids, and one sentence that says
it.

Nothing is cut, skipped or unknown in silence: whoever encodes counts here, and the first cut is
logged. What share is too much is for the reader of the counts to say.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from threading import Lock

log = logging.getLogger(__name__)


@dataclass
class TextReport:
    """Counts over all lines that were added; `lines` is their number."""

    lines: int = 0
    empty: int = 0
    tokens: int = 0
    """Tokens that remain, begin and end included."""
    cut_lines: int = 0
    cut_tokens: int = 0
    """Tokens that were cut off."""
    unknown: int = 0
    """Tokens that became the unknown token."""
    over_budget: int = 0
    """Lines longer than a batch's token budget, which stand in a batch of their own."""
    limit: int | None = None
    """The length at which lines were cut; None: none was."""
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    was_said: bool = field(default=False, repr=False, compare=False)

    def add(self, tokens: int, cut: int = 0, unknown: int = 0, is_empty: bool = False) -> None:
        """Count one line of `tokens` tokens after `cut` tokens were cut off. Safe between
        threads."""
        with self.lock:
            self.lines += 1
            self.empty += is_empty
            self.tokens += tokens
            self.cut_lines += cut > 0
            self.cut_tokens += cut
            self.unknown += unknown

    def warn_once(self, limit: int) -> None:
        """Log the first cut; later ones are only counted."""
        self.limit = limit
        with self.lock:
            is_first, self.was_said = not self.was_said, True
        if is_first:
            log.warning(
                "cut_lines=%d cut_tokens=%d lines=%d max_len=%d said=once",
                self.cut_lines,
                self.cut_tokens,
                self.lines,
                limit,
            )

    def to_dict(self) -> dict[str, int | None]:
        """The counts as plain values."""
        hidden = ("lock", "was_said")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}

    def summary(self) -> str:
        """One sentence with every count that is not zero."""
        parts = [f"{counted(self.lines, 'line')}, {counted(self.tokens, 'token')}"]
        if self.cut_lines:
            parts.append(
                f"{self.cut_lines} cut at {self.limit} tokens "
                f"({counted(self.cut_tokens, 'token')} lost)"
            )
        if self.empty:
            parts.append(f"{self.empty} empty")
        if self.unknown:
            parts.append(f"{counted(self.unknown, 'unknown token')}")
        if self.over_budget:
            parts.append(f"{self.over_budget} longer than the token budget, each in its own batch")
        return "; ".join(parts) + "."


def counted(number: int, noun: str) -> str:
    """'1 line', '2 lines'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
