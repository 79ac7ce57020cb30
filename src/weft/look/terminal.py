"""Text on a terminal: its width in columns, padding and cutting by it, and shades of grey.

A Chinese character takes two columns, a combining mark none (Unicode's East Asian width, UAX 11).
Where the locale is not UTF-8, or where asked, shades are ASCII. Colour is never used.
"""

from __future__ import annotations

import locale
import unicodedata

SHADES = (" ", "\u2591", "\u2592", "\u2593", "\u2588")
ASCII_SHADES = (" ", ".", "+", "*", "#")
STEPS = (0.05, 0.15, 0.35, 0.65)
"""Weights from which the next darker shade is used."""

SPACE, ASCII_SPACE = "\u2581", "_"
"""Shown for a space inside a token."""


def display_width(text: str) -> int:
    """Columns that the text takes."""
    return sum(map(char_width, text))


def char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def pad(text: str, width: int) -> str:
    """The text with spaces behind it, `width` columns in all; a longer one stays as it is."""
    return text + " " * (width - display_width(text))


def cut(text: str, width: int) -> str:
    """As many whole characters as fit into `width` columns, with "~" at the end if some do not."""
    if display_width(text) <= width:
        return text
    used, kept = 1, ""
    for char in text:
        used += char_width(char)
        if used > width:
            break
        kept += char
    return kept + "~"


def is_ascii_only() -> bool:
    """Whether this process's locale cannot show block characters."""
    return locale.getencoding().lower().replace("-", "") != "utf8"


def shade(weight: float, is_ascii: bool = False) -> str:
    """A block that is the darker, the larger a weight between 0 and 1 is."""
    level = sum(weight >= step for step in STEPS)
    return (ASCII_SHADES if is_ascii else SHADES)[level]


def legend(is_ascii: bool = False) -> str:
    """What the shades mean, in one line."""
    shades = (ASCII_SHADES if is_ascii else SHADES)[1:]
    return "  ".join(
        f"{block * 2} from {step:.2f}" for block, step in zip(shades, STEPS, strict=True)
    )


def visible(piece: str, is_ascii: bool = False) -> str:
    """A token with its spaces shown, and what cannot be seen written as an escape."""
    shown = piece.replace(" ", ASCII_SPACE if is_ascii else SPACE)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
