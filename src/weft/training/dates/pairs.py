"""A seed -> pairs (written date, ISO date), split by date: no date is in two parts.

A date's part follows from a checksum of its ISO form alone, so it is the same for every seed and
every number of pairs. All draws come from one random.Random: equal seeds give equal pairs.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from datetime import date, timedelta
from functools import cached_property
from typing import Literal, NamedTuple

from weft.training.dates.digits import han_pieces, local_digits
from weft.training.dates.forms import Form
from weft.training.dates.languages import LOCALES, Language, read_language
from weft.training.dates.noise import TYPED, Slips, lower, upper
from weft.training.dates.write import Piece, text_of, write

PartName = Literal["train", "valid", "test"]
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
HAN_TAGS = ("zh", "ja")

SLIP_SHARE = 0.1
CASE_SHARE = 0.2
LOCAL_SHARE = 0.5
HAN_SHARE = 0.2
TYPED_SHARE = 0.5


class DatePair(NamedTuple):
    """A written date, what it means, and how it was made."""

    written: str
    iso: str
    tag: str


def part_of(day: date) -> PartName:
    """The part a date belongs to: 18 of 20 train, one valid, one test."""
    number = zlib.crc32(day.isoformat().encode()) % 20
    return "valid" if number == 0 else "test" if number == 1 else "train"


class DateTask:
    """The task: all languages, and the dates of each part."""

    def __init__(self, tags: tuple[str, ...] = LOCALES) -> None:
        self.languages = [read_language(tag) for tag in tags]
        self.slips = Slips(self.languages)

    @cached_property
    def days(self) -> dict[PartName, list[date]]:
        parts: dict[PartName, list[date]] = {"train": [], "valid": [], "test": []}
        for offset in range((LAST - FIRST).days + 1):
            day = FIRST + timedelta(offset)
            parts[part_of(day)].append(day)
        return parts

    def pairs(self, part: PartName, number: int, seed: int) -> Iterator[DatePair]:
        """`number` pairs; the languages take turns, so that each has its share."""
        rng = random.Random(f"{part} {seed}")
        for index in range(number):
            language = self.languages[index % len(self.languages)]
            day = rng.choice(self.days[part])
            yield DatePair(self.draw(day, language, rng), day.isoformat(), language.tag)

    def draw(self, day: date, language: Language, rng: random.Random) -> str:
        """One way in which somebody might write the day."""
        is_local = language.zero is not None and rng.random() < LOCAL_SHARE
        pieces = write(day, language, draw_form(day, language, is_local, rng))
        if rng.random() < SLIP_SHARE:
            pieces = self.slips.apply(pieces, rng)
        return finish(pieces, language, is_local, rng)


def draw_form(day: date, language: Language, is_local: bool, rng: random.Random) -> Form:
    """A form in which this day can be read in one way only."""
    return rng.choice([form for form in language.forms if form.is_readable(day, is_local)])


def finish(pieces: list[Piece], language: Language, is_local: bool, rng: random.Random) -> str:
    """The last touches: numerals, keyboard characters, case."""
    is_units = all(mark not in "/.-" for piece in pieces for mark in piece.text)
    if language.tag in HAN_TAGS and is_units and rng.random() < HAN_SHARE:
        pieces = han_pieces(pieces)
    text = text_of(pieces)
    if language.zero is not None and is_local:
        text = local_digits(text, language.zero)
    if rng.random() < TYPED_SHARE:
        text = text.translate(TYPED)
    if rng.random() < CASE_SHARE:
        text = rng.choice((lower, upper))(text, language.tag)
    return text
