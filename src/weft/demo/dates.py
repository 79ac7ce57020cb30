"""A seed -> pairs (date as people write it, ISO date), split by date into train, valid and test.

    locale -> DateLanguage (formats, names, digits from CLDR, through Babel)
           -> a date in one of the formats, as pieces -> noise -> text

Included: Gregorian dates of 1900-2099 in CLDR's short, medium, long and full formats and those with
a weekday, local digits, Chinese numerals, upper and lower case, and one typo in a name. Not
included: dates that can be read in two ways (3/4/2026), other calendars (a Thai year 2569, a
Persian month), words that CLDR's formats do not have ("the 7th of"), and typos in numbers.

The model is not given the language, so a format is used for a date only if day, month and year can
be told apart without it:

    March 7, 2026     a month by name                             always
    2026/3/7          the year first, with four digits            always
    7.3.2026          dots: all languages with them write         always
    7.3.26            the day first                               1969-2068, as POSIX reads 26
    13/3/2026         other separators: languages differ          one number over 12, or both equal
    local digits      only languages with the day first           always

The part of a date follows from a checksum of its ISO form alone, so that it is the same for every
seed and number of pairs. All draws come from one random.Random: equal seeds give equal pairs.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Literal, NamedTuple

from babel import Locale
from babel.dates import tokenize_pattern

LOCALES = (
    "ar_EG", "bg", "bn", "cs", "da", "de", "el", "en_GB", "en_US", "es", "fa", "fi", "fr", "he",
    "hi", "hu", "id", "it", "ja", "ko", "nl", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi",
    "zh",
)  # fmt: skip
"""31 locales of 30 languages."""

FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMMd", "yMMMEd")
"""CLDR's formats, and its skeletons of formats with a weekday."""

ZEROS = {"arab": 0x660, "arabext": 0x6F0, "deva": 0x966, "beng": 0x9E6, "thai": 0xE50}
"""Code point of the zero of a CLDR numbering system; the other digits follow it."""

WIDTHS = {3: "abbreviated", 4: "wide"}
"""CLDR's names for the number of letters in a pattern."""

TWO_DIGIT_YEARS = range(1969, 2069)
"""The years of two digits: 69-99 are 19.., 00-68 are 20.. (POSIX strptime)."""

HAN_LOCALES = ("zh", "ja")
HAN_DIGITS = "\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d"
HAN_TEN = "\u5341"

KEYBOARD = {0x202F: " ", 0xA0: " ", 0x200F: None, 0x200E: None}
"""What people type instead of CLDR's narrow and no-break spaces and direction marks."""

TO_UPPER = str.maketrans({"i": "\u0130", "\u0131": "I"})
TO_LOWER = str.maketrans({"\u0130": "i", "I": "\u0131"})
"""Turkish has an i with and one without a dot, each in both cases."""

MIN_TYPO_LETTERS = 4
"""Letters of a name that may have a typo: "Jun" without a letter could be two months."""

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)

TYPO_SHARE = 0.1
CASE_SHARE = 0.2
LOCAL_SHARE = 0.5
HAN_SHARE = 0.2
KEYBOARD_SHARE = 0.5

PartName = Literal["train", "valid", "test"]


class PatternField(NamedTuple):
    """A letter of a CLDR pattern and how often it is repeated: MMMM is ("M", 4)."""

    letter: str
    width: int


@dataclass(frozen=True)
class DateFormat:
    """A CLDR pattern such as "EEEE, d. MMMM y", split into literal text and fields."""

    parts: tuple[str | PatternField, ...]

    @cached_property
    def fields(self) -> list[PatternField]:
        return [part for part in self.parts if isinstance(part, PatternField)]

    @property
    def date_fields(self) -> list[PatternField]:
        """Day, month and year, without weekday and era."""
        return [field for field in self.fields if field.letter in "dMy"]

    @cached_property
    def order(self) -> str:
        """Day, month and year in the order of the pattern: "dMy"."""
        return "".join(field.letter for field in self.date_fields)

    @cached_property
    def is_numeric(self) -> bool:
        """Whether the month is a number."""
        return all(field.width <= 2 for field in self.fields if field.letter == "M")

    @cached_property
    def has_short_year(self) -> bool:
        return PatternField("y", 2) in self.fields

    @cached_property
    def has_dots(self) -> bool:
        """Whether the numbers are separated by dots and nothing else."""
        first, last = (self.parts.index(f) for f in (self.date_fields[0], self.date_fields[-1]))
        between = "".join(part for part in self.parts[first:last] if isinstance(part, str))
        return set(between) - {" "} == {"."}

    @property
    def is_usable(self) -> bool:
        """Whether any date is unambiguous: a two-digit year needs dots and the last place."""
        is_complete = sorted(self.order) == ["M", "d", "y"]
        is_clear = self.is_numeric and self.has_dots and self.order == "dMy"
        return is_complete and (is_clear or not self.has_short_year)

    def is_unambiguous(self, day: date, has_local_digits: bool) -> bool:
        """Whether this date in this format can be read in one way only (table of the module)."""
        if self.has_short_year and day.year not in TWO_DIGIT_YEARS:
            return False
        if not self.is_numeric or self.order[0] == "y" or self.has_dots or has_local_digits:
            return True
        return day.day > 12 or day.day == day.month


@dataclass(frozen=True)
class DateLanguage:
    """How dates are written in one locale."""

    tag: str
    formats: tuple[DateFormat, ...]
    months: dict[int, tuple[str, ...]]
    """Names by the number of letters in a pattern, 3 or 4; January first."""
    weekdays: dict[tuple[str, int], tuple[str, ...]]
    """Names by pattern letter and number of letters; Monday first."""
    era: str
    """The word for years after Christ."""
    zero: int | None
    """Code point of the local zero; None: the digits are 0 to 9."""


def read_language(tag: str) -> DateLanguage:
    """The CLDR data of a locale."""
    locale = Locale.parse(tag)
    return DateLanguage(
        tag=tag,
        formats=read_formats(locale),
        months={n: month_names(locale, width) for n, width in WIDTHS.items()},
        weekdays={
            (letter, n): weekday_names(locale, letter, width)
            for letter in "Ec"
            for n, width in WIDTHS.items()
        },
        era=locale.eras["abbreviated"][1],
        zero=ZEROS.get(locale.other_numbering_systems.get("native", "")),
    )


def language_name(tag: str) -> str:
    """In English: "German", "English (GB)"."""
    locale = Locale.parse(tag)
    territory = f" ({locale.territory})" if locale.territory else ""
    return f"{locale.get_language_name('en')}{territory}"


def read_formats(locale: Locale) -> tuple[DateFormat, ...]:
    """The usable formats without repetitions, in CLDR's order."""
    patterns = [locale.date_formats[name].pattern for name in FORMATS]
    skeletons = locale.datetime_skeletons
    patterns += [skeletons[name].pattern for name in SKELETONS if name in skeletons]
    formats = dict.fromkeys(parse_format(pattern) for pattern in patterns)
    return tuple(one for one in formats if one.is_usable)


def parse_format(pattern: str) -> DateFormat:
    """Split a CLDR pattern. E, EE and EEE mean the same; so do y and yyyy."""
    parts: list[str | PatternField] = []
    for kind, value in tokenize_pattern(pattern):
        if kind == "chars":
            parts.append(str(value))
            continue
        letter, width = value[0], int(value[1])
        if letter in "Ec":
            width = max(3, width)
        parts.append(PatternField(letter, 1 if letter == "y" and width > 2 else width))
    return DateFormat(tuple(parts))


def month_names(locale: Locale, width: str) -> tuple[str, ...]:
    names = locale.months["format"][width]
    return tuple(names[month] for month in range(1, 13))


def weekday_names(locale: Locale, letter: str, width: str) -> tuple[str, ...]:
    context = "format" if letter == "E" else "stand-alone"
    names = locale.days[context][width]
    return tuple(names[day] for day in range(7))


class DatePiece(NamedTuple):
    """A part of a written date. Its kind tells which digits and names noise may change."""

    text: str
    kind: Literal["literal", "year", "number", "month", "weekday"]


def format_pieces(day: date, language: DateLanguage, date_format: DateFormat) -> list[DatePiece]:
    """The date in this format, in the digits 0 to 9. Joined, it equals Babel's format_date."""
    return [
        DatePiece(part, "literal") if isinstance(part, str) else format_field(day, language, part)
        for part in date_format.parts
    ]


def format_field(day: date, language: DateLanguage, field: PatternField) -> DatePiece:
    letter, width = field
    if letter == "y":
        return DatePiece(f"{day.year % 100:02d}" if width == 2 else str(day.year), "year")
    if letter == "d":
        return DatePiece(str(day.day).zfill(width), "number")
    if letter == "M" and width > 2:
        return DatePiece(language.months[width][day.month - 1], "month")
    if letter == "M":
        return DatePiece(str(day.month).zfill(width), "number")
    if letter in "Ec":
        return DatePiece(language.weekdays[letter, width][day.weekday()], "weekday")
    assert letter == "G", f"pattern letter {letter} of {language.tag} is none of y M d E c G"
    return DatePiece(language.era, "literal")


def join_pieces(pieces: list[DatePiece]) -> str:
    return "".join(piece.text for piece in pieces)


def local_digits(text: str, zero: int) -> str:
    """Replace the digits 0-9 by those of the script whose zero is at this code point."""
    return text.translate({ord("0") + digit: zero + digit for digit in range(10)})


def han_number(number: int) -> str:
    """1 to 99 in Chinese numerals: 17 is ten-seven, 20 two-ten."""
    tens, ones = divmod(number, 10)
    head = (HAN_DIGITS[tens] if tens > 1 else "") + HAN_TEN if tens else ""
    return head + (HAN_DIGITS[ones] if ones else "")


def han_pieces(pieces: list[DatePiece]) -> list[DatePiece]:
    """A date in Chinese numerals: the year digit by digit, day and month as numbers."""
    return [han_piece(piece) for piece in pieces]


def han_piece(piece: DatePiece) -> DatePiece:
    if piece.kind == "year":
        return DatePiece("".join(HAN_DIGITS[int(digit)] for digit in piece.text), "year")
    return DatePiece(han_number(int(piece.text)), "number") if piece.kind == "number" else piece


def upper(text: str, tag: str) -> str:
    return (text.translate(TO_UPPER) if tag == "tr" else text).upper()


def lower(text: str, tag: str) -> str:
    return (text.translate(TO_LOWER) if tag == "tr" else text).lower()


def typos(name: str) -> list[str]:
    """All spellings with one letter dropped, doubled or swapped with the next, the first letter
    excepted, which people rarely miss."""
    spellings = []
    for i in range(1, len(name)):
        if not name[i].isalpha():
            continue
        spellings += [name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]]
        if i + 1 < len(name) and name[i + 1].isalpha() and name[i] != name[i + 1]:
            spellings.append(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return spellings


class MonthTypos:
    """The typos after which a name can still be only one month, in all languages together."""

    def __init__(self, languages: Iterable[DateLanguage]) -> None:
        self.months: dict[str, set[int]] = {}
        for language in languages:
            for names in language.months.values():
                for number, name in enumerate(names, start=1):
                    for spelling in (name, *typos(name)):
                        self.months.setdefault(spelling.casefold(), set()).add(number)

    def choices(self, piece: DatePiece) -> list[str]:
        """Misspellings of a month or weekday that cannot be read as another month."""
        num_letters = sum(map(str.isalpha, piece.text))
        if piece.kind not in ("month", "weekday") or num_letters < MIN_TYPO_LETTERS:
            return []
        is_month = piece.kind == "month"
        months = self.months.get(piece.text.casefold(), set()) if is_month else set()
        return [s for s in typos(piece.text) if self.months.get(s.casefold(), months) == months]

    def apply(self, pieces: list[DatePiece], rng: random.Random) -> list[DatePiece]:
        """Misspell one name, if the date has one."""
        candidates = [(i, choices) for i, p in enumerate(pieces) if (choices := self.choices(p))]
        if not candidates:
            return pieces
        index, choices = rng.choice(candidates)
        misspelled = DatePiece(rng.choice(choices), pieces[index].kind)
        return [*pieces[:index], misspelled, *pieces[index + 1 :]]


class DatePair(NamedTuple):
    """A written date, its ISO form, and the locale it is written in."""

    written: str
    iso: str
    tag: str


def part_of(day: date) -> PartName:
    """The part of a date: 18 of 20 train, one valid, one test."""
    number = zlib.crc32(day.isoformat().encode()) % 20
    return "valid" if number == 0 else "test" if number == 1 else "train"


class DateTask:
    """Draws pairs in all languages."""

    def __init__(self, tags: tuple[str, ...] = LOCALES) -> None:
        self.languages = [read_language(tag) for tag in tags]
        self.typos = MonthTypos(self.languages)

    @cached_property
    def days(self) -> dict[PartName, list[date]]:
        """The dates of each part."""
        parts: dict[PartName, list[date]] = {"train": [], "valid": [], "test": []}
        for offset in range((LAST - FIRST).days + 1):
            day = FIRST + timedelta(offset)
            parts[part_of(day)].append(day)
        return parts

    def pairs(self, part: PartName, num_pairs: int, seed: int) -> Iterator[DatePair]:
        """Draw pairs of a part, with the languages in rotation."""
        rng = random.Random(f"{part} {seed}")
        for index in range(num_pairs):
            language = self.languages[index % len(self.languages)]
            day = rng.choice(self.days[part])
            yield DatePair(self.draw(day, language, rng), day.isoformat(), language.tag)

    def draw(self, day: date, language: DateLanguage, rng: random.Random) -> str:
        """One way in which people might write the day."""
        has_local_digits = language.zero is not None and rng.random() < LOCAL_SHARE
        date_format = draw_format(day, language, has_local_digits, rng)
        pieces = format_pieces(day, language, date_format)
        if rng.random() < TYPO_SHARE:
            pieces = self.typos.apply(pieces, rng)
        return add_noise(pieces, language, has_local_digits, rng)


def draw_format(
    day: date, language: DateLanguage, has_local_digits: bool, rng: random.Random
) -> DateFormat:
    """A format in which this day is unambiguous."""
    return rng.choice([f for f in language.formats if f.is_unambiguous(day, has_local_digits)])


def add_noise(
    pieces: list[DatePiece], language: DateLanguage, has_local_digits: bool, rng: random.Random
) -> str:
    """Numerals, keyboard characters and case."""
    has_units = all(mark not in "/.-" for piece in pieces for mark in piece.text)
    if language.tag in HAN_LOCALES and has_units and rng.random() < HAN_SHARE:
        pieces = han_pieces(pieces)
    text = join_pieces(pieces)
    if language.zero is not None and has_local_digits:
        text = local_digits(text, language.zero)
    if rng.random() < KEYBOARD_SHARE:
        text = text.translate(KEYBOARD)
    if rng.random() < CASE_SHARE:
        text = rng.choice((lower, upper))(text, language.tag)
    return text
