"""Token ids of texts -> ids with BOS and EOS, truncated to a length; and a `TextReport`.

`TextReport` counts truncated and empty texts and unknown tokens. The first truncation is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from threading import Lock

from weft.core.errors import UsageError

log = logging.getLogger(__name__)

Frame = tuple[list[int], list[int]]
"""The special ids before and after every text."""


@dataclass
class TextReport:
    """Counts over all lines that were encoded; `lines` is their number."""

    lines: int = 0
    empty: int = 0
    tokens: int = 0
    """Tokens after truncation, begin and end included."""
    cut_lines: int = 0
    cut_tokens: int = 0
    """Tokens that were cut off."""
    unknown: int = 0
    """Tokens that became the unknown token."""
    over_budget: int = 0
    """Lines longer than a batch's token budget; each has a batch of its own."""
    limit: int | None = None
    """The length at which lines were truncated; None: none was."""
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    has_warned: bool = field(default=False, repr=False, compare=False)

    def add(self, tokens: int, cut: int = 0, unknown: int = 0, is_empty: bool = False) -> None:
        """Count one line of `tokens` tokens after `cut` tokens were cut off. Thread-safe."""
        with self.lock:
            self.lines += 1
            self.empty += is_empty
            self.tokens += tokens
            self.cut_lines += cut > 0
            self.cut_tokens += cut
            self.unknown += unknown

    def warn_once(self, limit: int) -> None:
        """Log the first truncation; later ones are only counted."""
        self.limit = limit
        with self.lock:
            is_first, self.has_warned = not self.has_warned, True
        if is_first:
            log.warning(
                "cut_lines=%d cut_tokens=%d lines=%d max_len=%d logged=once",
                self.cut_lines,
                self.cut_tokens,
                self.lines,
                limit,
            )

    def to_dict(self) -> dict[str, int | None]:
        """The counts as plain values."""
        hidden = ("lock", "has_warned")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}

    def summary(self) -> str:
        """One sentence with every count that is not zero."""
        parts = [f"{pluralize(self.lines, 'line')}, {pluralize(self.tokens, 'token')}"]
        if self.cut_lines:
            parts.append(
                f"{self.cut_lines} cut at {self.limit} tokens "
                f"({pluralize(self.cut_tokens, 'token')} lost)"
            )
        if self.empty:
            parts.append(f"{self.empty} empty")
        if self.unknown:
            parts.append(f"{pluralize(self.unknown, 'unknown token')}")
        if self.over_budget:
            parts.append(f"{self.over_budget} longer than the token budget, each in its own batch")
        return "; ".join(parts) + "."


def pluralize(number: int, noun: str) -> str:
    """'1 line', '2 lines'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def truncate(
    bodies: Sequence[list[int]],
    frame: Frame,
    limit: int | None,
    unknown_id: int | None,
    report: TextReport,
) -> list[list[int]]:
    """Each body between the special ids of the frame, at most `limit` ids in total. The end of the
    body is cut off, never the frame."""
    before, after = frame
    max_body = max_body_len(frame, limit)
    cut_lines_before = report.cut_lines
    rows: list[list[int]] = []
    for body in bodies:
        kept = body if max_body is None else body[:max_body]
        rows.append([*before, *kept, *after])
        unknown = 0 if unknown_id is None else kept.count(unknown_id)
        report.add(len(rows[-1]), len(body) - len(kept), unknown, is_empty=not body)
    if limit is not None and report.cut_lines > cut_lines_before:
        report.warn_once(limit)
    return rows


def max_body_len(frame: Frame, limit: int | None) -> int | None:
    """Maximum number of ids of a text inside the frame; None: no limit."""
    if limit is None:
        return None
    num_special = len(frame[0]) + len(frame[1])
    if limit <= num_special:
        raise UsageError(
            f"max_len is {limit} but begin and end alone take {num_special}: nothing of the text "
            f"would be left. Use at least {num_special + 1}."
        )
    return limit - num_special


def check_encodable(texts: Sequence[str]) -> None:
    """Raise a UsageError for anything that is not str, or that UTF-8 cannot encode (a lone
    surrogate)."""
    if isinstance(texts, str):
        raise UsageError("texts is one str: a batch is a list of them. Use encode(text) for one.")
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"text is {type(text).__name__}: only str can be encoded. Decode it.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"character {error.start + 1} of the text is {text[error.start]!a}, half of a "
                "surrogate pair, which is not text. Remove it, or decode the text with its pair."
            ) from None
