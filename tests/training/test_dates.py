"""The dates task: true to CLDR, split by date, readable in one way only, the same for a seed."""

import random
from collections import defaultdict
from datetime import date

import pytest
from babel import Locale
from babel.dates import format_date

from weft.core.errors import UsageError
from weft.text.corpus import read_pairs
from weft.training.dates.digits import han_number, han_pieces, local_digits
from weft.training.dates.files import write_dates
from weft.training.dates.forms import Form
from weft.training.dates.languages import LOCALES, language_name, parse_form, read_language
from weft.training.dates.noise import Slips, lower, slips, upper
from weft.training.dates.pairs import DateTask, part_of
from weft.training.dates.write import Piece, text_of, write

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
def test_forms_are_written_as_babel_writes_them(tag):
    language, locale = read_language(tag), Locale.parse(tag)
    for day in (DAY, date(1999, 12, 31), date(2001, 10, 9)):
        written = {text_of(write(day, language, form)) for form in language.forms}
        for name in ("medium", "long", "full"):
            assert format_date(day, name, locale) in written


@pytest.mark.parametrize(
    ("pattern", "day", "is_local", "is_readable"),
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
def test_a_form_is_used_only_where_the_date_can_be_read_in_one_way(
    pattern, day, is_local, is_readable
):
    assert parse_form(pattern).is_readable(day, is_local) is is_readable


@pytest.mark.parametrize(
    ("pattern", "can_be_used"),
    [("d/M/yy", False), ("yy. M. d.", False), ("dd.MM.yy", True), ("d/M/y", True), ("d/M", False)],
)
def test_a_form_that_is_never_readable_is_left_out(pattern, can_be_used):
    form: Form = parse_form(pattern)
    assert form.can_be_used is can_be_used


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
    assert [text for text, found in meanings.items() if len(found) > 1] == []


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
    pieces = han_pieces(write(DAY, read_language("zh"), parse_form("y\u5e74M\u6708d\u65e5")))
    assert text_of(pieces) == "\u4e8c\u3007\u4e8c\u516d\u5e74\u4e09\u6708\u4e03\u65e5"


def test_a_slip_swaps_drops_or_doubles_a_letter_but_the_first():
    assert set(slips("abc")) == {"ac", "abbc", "acb", "ab", "abcc"}
    assert slips("a1") == []


def test_slips_never_touch_numbers_and_leave_one_month(task):
    rng = random.Random(0)
    months = {
        name.casefold(): number
        for language in task.languages
        for names in language.months.values()
        for number, name in enumerate(names, start=1)
    }
    for language in task.languages:
        for day in (DAY, date(2026, 6, 17), date(2026, 7, 28)):
            for form in language.forms:
                before = write(day, language, form)
                after = task.slips.apply(before, rng)
                changed = [(b, a) for b, a in zip(before, after, strict=True) if a != b]
                assert len(changed) <= 1
                for old, new in changed:
                    assert old.kind in ("month", "weekday")
                    assert months.get(new.text.casefold(), day.month) == day.month


def test_short_names_and_numbers_are_spelt_right():
    slips_of_english = Slips([read_language("en_US")])
    assert slips_of_english.choices(Piece("Jun", "month")) == []
    assert slips_of_english.choices(Piece("2026", "year")) == []
    assert "Janaury" in slips_of_english.choices(Piece("January", "month"))


def test_turkish_keeps_its_two_kinds_of_i():
    assert upper("Nisan", "tr") == "N\u0130SAN"
    assert lower("N\u0130SAN", "tr") == "nisan"
    assert upper("Nisan", "en_US") == "NISAN"


def test_files_are_pairs_that_training_can_read(tmp_path, task):
    write_dates(tmp_path, 124, 31, 62, seed=1)
    for part, number in (("train", 124), ("valid", 31), ("test", 62)):
        found = list(read_pairs(tmp_path / f"{part}.src", tmp_path / f"{part}.tgt"))
        assert found == [(p.written, p.iso) for p in task.pairs(part, number, seed=1)]
    assert (tmp_path / "test.lang").read_text().split() == list(LOCALES) * 2


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_dates(tmp_path / name, 50, 10, 10, seed=5)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_files_that_are_there_are_kept_or_refused(tmp_path):
    write_dates(tmp_path, 50, 10, 10, seed=5)
    before = (tmp_path / "train.src").stat().st_mtime_ns
    write_dates(tmp_path, 50, 10, 10, seed=5)
    assert (tmp_path / "train.src").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="'seed': 6"):
        write_dates(tmp_path, 50, 10, 10, seed=6)


def test_files_without_their_origin_are_written_again(tmp_path):
    write_dates(tmp_path, 50, 10, 10, seed=5)
    (tmp_path / "dates.json").unlink()
    (tmp_path / "train.src").write_text("half a li")
    write_dates(tmp_path, 50, 10, 10, seed=5)
    assert len((tmp_path / "train.src").read_text().splitlines()) == 50
