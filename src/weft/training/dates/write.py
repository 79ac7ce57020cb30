"""A date, a language and a form -> pieces of text, each known as a number, a name or a mark.

Joined as they are, the pieces are what Babel's own format_date gives; knowing their kind is what
lets `noise` change digits and misspell names without touching the rest.
"""

from __future__ import annotations

from datetime import date
from typing import Literal, NamedTuple

from weft.training.dates.forms import Field, Form
from weft.training.dates.languages import Language


class Piece(NamedTuple):
    """A part of a written date."""

    text: str
    kind: Literal["mark", "year", "number", "month", "weekday"]


def write(day: date, language: Language, form: Form) -> list[Piece]:
    """The date in this form, in the digits 0 to 9."""
    return [
        Piece(part, "mark") if isinstance(part, str) else write_field(day, language, part)
        for part in form.parts
    ]


def write_field(day: date, language: Language, field: Field) -> Piece:
    letter, width = field
    if letter == "y":
        return Piece(f"{day.year % 100:02d}" if width == 2 else str(day.year), "year")
    if letter == "d":
        return Piece(str(day.day).zfill(width), "number")
    if letter == "M" and width > 2:
        return Piece(language.months[width][day.month - 1], "month")
    if letter == "M":
        return Piece(str(day.month).zfill(width), "number")
    if letter in "Ec":
        return Piece(language.weekdays[letter, width][day.weekday()], "weekday")
    assert letter == "G", f"pattern letter {letter} of {language.tag} is none of y M d E c G"
    return Piece(language.era, "mark")


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
