"""Date forms: CLDR patterns ("EEEE, d. MMMM y") -> parts, and whether a date in one is readable.

The model is not told the language, so a form is used for a date only if a careful reader could tell
day, month and year apart without it:

    March 7, 2026     a month by name                             always
    2026/3/7          the year first, with four digits            always
    7.3.2026          dots: every language with them writes       always
    7.3.26            the day first                               1969-2068, as POSIX reads 26
    13/3/2026         other marks: languages differ (7/3, 3/7)    one number over 12, or both equal
    local digits      only languages with the day first           always
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import NamedTuple

TWO_DIGIT_YEARS = range(1969, 2069)
"""The years that two digits stand for: 69-99 are 19.., 00-68 are 20.. (POSIX strptime)."""


class Field(NamedTuple):
    """One letter of a pattern, as often as it stands there: MMMM is ("M", 4)."""

    letter: str
    width: int


Part = str | Field


@dataclass(frozen=True)
class Form:
    """A pattern in parts: text to copy and fields to fill."""

    parts: tuple[Part, ...]

    @cached_property
    def fields(self) -> list[Field]:
        return [part for part in self.parts if isinstance(part, Field)]

    @cached_property
    def order(self) -> str:
        """Day, month and year in the order they stand: "dMy"."""
        return "".join(field.letter for field in self.fields if field.letter in "dMy")

    @cached_property
    def is_numeric(self) -> bool:
        """The month is a number."""
        return all(field.width <= 2 for field in self.fields if field.letter == "M")

    @cached_property
    def has_short_year(self) -> bool:
        return Field("y", 2) in self.fields

    @cached_property
    def has_dots(self) -> bool:
        """A dot, and no other mark, stands between the numbers."""
        first, last = (self.parts.index(f) for f in (self.numbers[0], self.numbers[-1]))
        between = "".join(part for part in self.parts[first:last] if isinstance(part, str))
        return set(between) - {" "} == {"."}

    @property
    def numbers(self) -> list[Field]:
        return [field for field in self.fields if field.letter in "dMy"]

    @property
    def can_be_used(self) -> bool:
        """False if no date at all would be readable: two digits for a year need dots, at the
        end."""
        is_whole = sorted(self.order) == ["M", "d", "y"]
        is_clear = self.is_numeric and self.has_dots and self.order == "dMy"
        return is_whole and (is_clear or not self.has_short_year)

    def is_readable(self, day: date, is_local: bool) -> bool:
        """Whether this date in this form can be read in one way only (see the table above)."""
        if self.has_short_year and day.year not in TWO_DIGIT_YEARS:
            return False
        if not self.is_numeric or self.order[0] == "y" or self.has_dots or is_local:
            return True
        return day.day > 12 or day.day == day.month
