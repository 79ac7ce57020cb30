"""CLDR's date data, through Babel: a locale's tag -> `Language` with forms, names and digits.

The only file that imports Babel. Forms come from CLDR's short, medium, long and full formats and
from its patterns for a date with a weekday; what cannot be read (forms) is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass

from babel import Locale
from babel.dates import tokenize_pattern

from weft.training.dates.forms import Field, Form

LOCALES = (
    "ar_EG", "bg", "bn", "cs", "da", "de", "el", "en_GB", "en_US", "es", "fa", "fi", "fr", "he",
    "hi", "hu", "id", "it", "ja", "ko", "nl", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi",
    "zh",
)  # fmt: skip
"""31 locales of 30 languages."""

FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMMd", "yMMMEd")

ZEROS = {"arab": 0x660, "arabext": 0x6F0, "deva": 0x966, "beng": 0x9E6, "thai": 0xE50}
"""Where Unicode puts the zero of a CLDR numbering system; the other digits follow it."""

WIDTHS = {3: "abbreviated", 4: "wide"}


@dataclass(frozen=True)
class Language:
    """How dates are written in one locale."""

    tag: str
    forms: tuple[Form, ...]
    months: dict[int, tuple[str, ...]]
    """Names by the number of letters in a pattern, 3 or 4; January first, as a date has them."""
    weekdays: dict[tuple[str, int], tuple[str, ...]]
    """Names by pattern letter and their number; Monday first."""
    era: str
    """The word for years after Christ."""
    zero: int | None
    """Code point of the local zero; None: the digits are 0 to 9."""


def read_language(tag: str) -> Language:
    locale = Locale.parse(tag)
    return Language(
        tag=tag,
        forms=read_forms(locale),
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


def read_forms(locale: Locale) -> tuple[Form, ...]:
    """The usable forms, each once, in CLDR's order."""
    patterns = [locale.date_formats[name].pattern for name in FORMATS]
    skeletons = locale.datetime_skeletons
    patterns += [skeletons[name].pattern for name in SKELETONS if name in skeletons]
    forms = dict.fromkeys(parse_form(pattern) for pattern in patterns)
    return tuple(form for form in forms if form.can_be_used)


def parse_form(pattern: str) -> Form:
    """A CLDR pattern in parts. E, EE and EEE mean the same; so do y and yyyy."""
    parts: list[str | Field] = []
    for kind, value in tokenize_pattern(pattern):
        if kind == "chars":
            parts.append(str(value))
            continue
        letter, width = value[0], int(value[1])
        if letter in "Ec":
            width = max(3, width)
        parts.append(Field(letter, 1 if letter == "y" and width > 2 else width))
    return Form(tuple(parts))


def month_names(locale: Locale, width: str) -> tuple[str, ...]:
    names = locale.months["format"][width]
    return tuple(names[month] for month in range(1, 13))


def weekday_names(locale: Locale, letter: str, width: str) -> tuple[str, ...]:
    context = "format" if letter == "E" else "stand-alone"
    names = locale.days[context][width]
    return tuple(names[day] for day in range(7))
