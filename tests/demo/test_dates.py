"""The dates task: equal to CLDR, split by date, unambiguous, the same for a seed."""

import random
from collections import defaultdict
from datetime import date

import pytest
from babel import Locale
from babel.dates import format_date

from weft.demo.dates import (
    LOCALES,
    DatePiece,
    DateTask,
    MonthTypos,
    format_pieces,
    han_number,
    han_pieces,
    join_pieces,
    language_name,
    local_digits,
    lower,
    parse_format,
    part_of,
    read_language,
    typos,
    upper,
)

DAY = date(2026, 3, 7)
AMBIGUOUS, CLEAR, TWIN = date(2026, 3, 4), date(2026, 3, 13), date(2026, 3, 3)


@pytest.fixture(scope="module")
def task():
    return DateTask()


def test_at_least_twenty_languages_are_in_it():
    assert len({tag.split("_")[0] for tag in LOCALES}) >= 20
    assert {"zh", "ar_EG", "de", "fa", "hi", "bn", "th", "ja", "ko", "ru", "he"} <= set(LOCALES)
    assert [language_name(tag) for tag in ("de", "en_GB")] == ["German", "English (GB)"]


@pytest.mark.parametrize("tag", LOCALES)
def test_formats_equal_babels(tag):
    language, locale = read_language(tag), Locale.parse(tag)
    for day in (DAY, date(1999, 12, 31), date(2001, 10, 9)):
        written = {
            join_pieces(format_pieces(day, language, date_format))
            for date_format in language.formats
        }
        for name in ("medium", "long", "full"):
            assert format_date(day, name, locale) in written


@pytest.mark.parametrize(
    ("pattern", "day", "is_local", "is_unambiguous"),
    [
        ("M/d/y", AMBIGUOUS, False, False),
        ("d/M/y", AMBIGUOUS, False, False),
        ("dd-MM-y", AMBIGUOUS, False, False),
        ("d/M/y", AMBIGUOUS, True, True),
        ("M/d/y", CLEAR, False, True),
        ("d/M/y", TWIN, False, True),
        ("d.M.y", AMBIGUOUS, False, True),
        ("E, d. M. y", AMBIGUOUS, False, True),
        ("y/M/d", AMBIGUOUS, False, True),
        ("d MMM y", AMBIGUOUS, False, True),
        ("dd.MM.yy", AMBIGUOUS, False, True),
        ("dd.MM.yy", date(1968, 3, 13), False, False),
        ("dd.MM.yy", date(1969, 3, 13), False, True),
        ("dd.MM.yy", date(2069, 3, 13), False, False),
    ],
)
def test_a_format_is_used_only_where_the_date_is_unambiguous(
    pattern, day, is_local, is_unambiguous
):
    assert parse_format(pattern).is_unambiguous(day, is_local) is is_unambiguous


@pytest.mark.parametrize(
    ("pattern", "is_usable"),
    [("d/M/yy", False), ("yy. M. d.", False), ("dd.MM.yy", True), ("d/M/y", True), ("d/M", False)],
)
def test_a_format_that_is_always_ambiguous_is_left_out(pattern, is_usable):
    assert parse_format(pattern).is_usable is is_usable


def test_no_date_is_in_two_parts(task):
    parts = {name: set(days) for name, days in task.days.items()}
    assert not parts["train"] & parts["valid"]
    assert not parts["train"] & parts["test"]
    assert not parts["valid"] & parts["test"]
    assert sum(map(len, parts.values())) == (date(2100, 1, 1) - date(1900, 1, 1)).days
    assert min(len(days) for days in parts.values()) > 3000


def test_pairs_keep_to_the_dates_of_their_part(task):
    for name in ("train", "valid", "test"):
        for pair in task.pairs(name, 500, seed=3):
            assert part_of(date.fromisoformat(pair.iso)) == name


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_every_language_is_in_every_part(task, part):
    assert {pair.tag for pair in task.pairs(part, 100, seed=1)} == set(LOCALES)


def test_no_text_stands_for_two_dates(task):
    meanings = defaultdict(set)
    for part in ("train", "test"):
        for pair in task.pairs(part, 20_000, seed=1):
            meanings[pair.written.casefold()].add(pair.iso)
    assert [text for text, result in meanings.items() if len(result) > 1] == []


def test_a_seed_decides_the_pairs(task):
    first = list(task.pairs("train", 300, seed=1))
    assert first == list(DateTask().pairs("train", 300, seed=1))
    assert first != list(task.pairs("train", 300, seed=2))


def test_local_digits_and_chinese_numerals_come_up(task):
    text = "".join(pair.written for pair in task.pairs("train", 3000, seed=1))
    for digit in (0x660, 0x6F0, 0x966, 0x9E6, 0xE50, 0x3007):
        assert chr(digit) in text


def test_digits_are_replaced_one_by_one():
    assert local_digits("7/3/2026", 0x660) == "\u0667/\u0663/\u0662\u0660\u0662\u0666"


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "\u4e00"), (10, "\u5341"), (17, "\u5341\u4e03"), (20, "\u4e8c\u5341"),
     (31, "\u4e09\u5341\u4e00")],
)  # fmt: skip
def test_chinese_numerals_read_as_numbers(number, text):
    assert han_number(number) == text


def test_a_chinese_date_has_its_year_digit_by_digit():
    pieces = han_pieces(
        format_pieces(DAY, read_language("zh"), parse_format("y\u5e74M\u6708d\u65e5"))
    )
    assert join_pieces(pieces) == "\u4e8c\u3007\u4e8c\u516d\u5e74\u4e09\u6708\u4e03\u65e5"


def test_a_typo_swaps_drops_or_doubles_a_letter_but_the_first():
    assert set(typos("abc")) == {"ac", "abbc", "acb", "ab", "abcc"}
    assert typos("a1") == []


def test_typos_never_touch_numbers_and_leave_one_month(task):
    rng = random.Random(0)
    months = {
        name.casefold(): number
        for language in task.languages
        for names in language.months.values()
        for number, name in enumerate(names, start=1)
    }
    for language in task.languages:
        for day in (DAY, date(2026, 6, 17), date(2026, 7, 28)):
            for date_format in language.formats:
                before = format_pieces(day, language, date_format)
                after = task.typos.apply(before, rng)
                changed = [(b, a) for b, a in zip(before, after, strict=True) if a != b]
                assert len(changed) <= 1
                for old, new in changed:
                    assert old.kind in ("month", "weekday")
                    assert months.get(new.text.casefold(), day.month) == day.month


def test_short_names_and_numbers_have_no_typos():
    typos_of_english = MonthTypos([read_language("en_US")])
    assert typos_of_english.choices(DatePiece("Jun", "month")) == []
    assert typos_of_english.choices(DatePiece("2026", "year")) == []
    assert "Janaury" in typos_of_english.choices(DatePiece("January", "month"))


def test_turkish_keeps_its_two_kinds_of_i():
    assert upper("Nisan", "tr") == "N\u0130SAN"
    assert lower("N\u0130SAN", "tr") == "nisan"
    assert upper("Nisan", "en_US") == "NISAN"
