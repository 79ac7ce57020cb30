"""Text on a terminal: width in columns, padding, truncation, and shades of gray.

A Chinese character takes two columns, a combining mark none (Unicode's East Asian width, UAX 11).
If the locale is not UTF-8, or on request, shades are ASCII. Colors are not used.
"""

from __future__ import annotations

import locale
import unicodedata

SHADES = (" ", "\u2591", "\u2592", "\u2593", "\u2588")
ASCII_SHADES = (" ", ".", "+", "*", "#")
STEPS = (0.05, 0.15, 0.35, 0.65)
"""Weights from which the next darker shade is used."""

HANGUL_JAMO = frozenset(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD800))))
"""Vowels and final consonants that are drawn inside the syllable before them."""

SPACE, ASCII_SPACE = "\u2581", "_"
"""Shown for a space inside a token."""


def display_width(text: str) -> int:
    """Width of the text in columns."""
    return sum(map(char_width, text))


def char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    if char in HANGUL_JAMO:
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def pad(text: str, width: int) -> str:
    """The text followed by spaces, `width` columns in total; a longer text is unchanged."""
    return text + " " * (width - display_width(text))


def truncate(text: str, width: int) -> str:
    """As many whole characters as fit into `width` columns, with "~" at the end if some are left
    out."""
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
    """The block for a weight between 0 and 1: darker for larger weights."""
    level = sum(weight >= step for step in STEPS)
    return (ASCII_SHADES if is_ascii else SHADES)[level]


def legend(is_ascii: bool = False) -> str:
    """The meaning of the shades, in one line."""
    shades = (ASCII_SHADES if is_ascii else SHADES)[1:]
    return "  ".join(
        f"{block * 2} from {step:.2f}" for block, step in zip(shades, STEPS, strict=True)
    )


def visible(piece: str, is_ascii: bool = False) -> str:
    """A token with visible spaces and escapes for unprintable characters."""
    return printable(piece.replace(" ", ASCII_SPACE if is_ascii else SPACE))


def printable(text: str) -> str:
    """The text with escapes for unprintable characters: line breaks, terminal control sequences,
    direction marks."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def plural(number: int, noun: str) -> str:
    """1 page, 1,203 pages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
