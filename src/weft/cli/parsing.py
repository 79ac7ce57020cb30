"""Comma-separated lists on the command line."""

from __future__ import annotations

from weft.core.errors import UsageError


def parse_words(text: str) -> list[str]:
    """'a, b' -> ['a', 'b']."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_integers(text: str, option: str, example: str) -> list[int]:
    """'1,5' -> [1, 5]; `option` and `example` are used in the error message."""
    try:
        return [int(word) for word in parse_words(text)]
    except ValueError:
        raise UsageError(
            f"{option} is '{text}': it must be integers separated by commas, such as {example}."
        ) from None
