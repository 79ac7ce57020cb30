"""Tokens of a text with the characters each one covers, for views that point at the text.

A token inside a character (a byte) covers that whole character. Differs from the library, whose
unigram model gives a run of bytes the span of the run: here each byte has its own character.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Encoding

from weft.text.token_bytes import BYTE_NAME

Span = tuple[int, int]
"""First character, and one past the last; equal for a token that is not in the text."""


@dataclass(frozen=True)
class Tokens:
    """One text: three lists of equal length."""

    ids: list[int]
    pieces: list[str]
    spans: list[Span]


def view_tokens(encoding: Encoding, text: str) -> Tokens:
    """The library's result, with the spans of bytes set right."""
    spans: list[Span] = list(encoding.offsets)
    for start, stop in byte_runs(encoding.tokens, spans):
        spans[start:stop] = byte_spans(text, spans[start], stop - start)
    return Tokens(list(encoding.ids), list(encoding.tokens), spans)


def byte_runs(pieces: list[str], spans: list[Span]) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) index of neighbouring bytes that share a span of several chars."""
    start = 0
    for index in range(1, len(pieces) + 1):
        if index < len(pieces) and spans[index] == spans[start] and is_byte(pieces[index]):
            continue
        if is_byte(pieces[start]) and spans[start][1] - spans[start][0] > 1:
            yield start, index
        start = index


def is_byte(piece: str) -> bool:
    return BYTE_NAME.fullmatch(piece) is not None


def byte_spans(text: str, span: Span, num_bytes: int) -> list[Span]:
    """One span a byte. Where normalising changed the number of bytes, all keep the whole span."""
    exact = [(i, i + 1) for i in range(*span) for _ in text[i].encode()]
    return exact if len(exact) == num_bytes else [span] * num_bytes
