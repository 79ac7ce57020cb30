"""Lists on the command line: "a,b" -> its parts."""

from __future__ import annotations

from weft.core.errors import UsageError


def words(text: str) -> list[str]:
    """The parts of a text between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str, example: str) -> list[int]:
    """The numbers in a text between commas; `option` and `example` are for the error."""
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise UsageError(
            f"{option} is '{text}': it must be whole numbers with commas, such as {example}."
        ) from None
