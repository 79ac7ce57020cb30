"""Ids of texts -> ids with begin and end, cut to a length; every cut is counted and said."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import UsageError
from weft.text.report import TextReport

Frame = tuple[list[int], list[int]]
"""The ids before and after every text."""


def fit(
    bodies: Sequence[list[int]],
    frame: Frame,
    limit: int | None,
    unknown_id: int | None,
    report: TextReport,
) -> list[list[int]]:
    """Each body inside the frame, at most `limit` ids in all: the body's end goes, never the
    frame."""
    before, after = frame
    room = room_in(frame, limit)
    cut_before = report.cut_lines
    rows: list[list[int]] = []
    for body in bodies:
        kept = body if room is None else body[:room]
        rows.append([*before, *kept, *after])
        unknown = 0 if unknown_id is None else kept.count(unknown_id)
        report.add(len(rows[-1]), len(body) - len(kept), unknown, is_empty=not body)
    if limit is not None and report.cut_lines > cut_before:
        report.warn_once(limit)
    return rows


def room_in(frame: Frame, limit: int | None) -> int | None:
    """Ids that a text may have inside the frame; None: any number."""
    if limit is None:
        return None
    taken = len(frame[0]) + len(frame[1])
    if limit <= taken:
        raise UsageError(
            f"max_len is {limit} but begin and end alone take {taken}: nothing of the text "
            f"would be left. Use at least {taken + 1}."
        )
    return limit - taken


def refuse_unencodable(texts: Sequence[str]) -> None:
    """A UsageError for what is not text, or is text that UTF-8 cannot hold (half a surrogate
    pair)."""
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
