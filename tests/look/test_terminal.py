"""Text on a terminal: widths, truncation, shades."""

import locale

import pytest

from weft.look.terminal import (
    ASCII_SHADES,
    SHADES,
    STEPS,
    display_width,
    is_ascii_only,
    legend,
    pad,
    shade,
    truncate,
    visible,
)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("\u82f9\u679c", 4),  # two Chinese characters
        ("e\u0301", 1),  # a letter and a combining accent
        ("\u0e21\u0e35", 1),  # Thai: a consonant and a vowel above it
        ("7\u200f/3", 3),  # a direction mark takes no column
        ("\uff21", 2),  # a full-width letter
    ],
)
def test_width_counts_columns_not_characters(text, width):
    assert display_width(text) == width


def test_padding_fills_up_to_a_width_in_columns():
    assert pad("\u82f9", 4) == "\u82f9  "
    assert pad("abc", 2) == "abc"


@pytest.mark.parametrize(
    ("text", "width", "kept"),
    [("abc", 3, "abc"), ("abcd", 3, "ab~"), ("\u82f9\u679c", 4, "\u82f9\u679c"),
     ("\u82f9\u679c", 3, "\u82f9~"), ("a\u82f9\u679c", 3, "a~")],
)  # fmt: skip
def test_truncation_keeps_whole_characters(text, width, kept):
    assert truncate(text, width) == kept
    assert display_width(truncate(text, width)) <= width


def test_shades_grow_with_the_weight():
    weights = [0.0, *STEPS]
    assert [shade(weight) for weight in weights] == list(SHADES)
    assert [shade(weight, is_ascii=True) for weight in weights] == list(ASCII_SHADES)
    assert shade(1.0) == SHADES[-1]


def test_the_ascii_forms_are_ascii():
    assert legend(is_ascii=True).isascii()
    assert visible(" a", is_ascii=True) == "_a"


def test_what_cannot_be_seen_is_written_out():
    assert visible("a b\u200f") == "a\u2581b\\u200f"


@pytest.mark.parametrize(("encoding", "is_ascii"), [("UTF-8", False), ("utf8", False),
                                                    ("ANSI_X3.4-1968", True)])  # fmt: skip
def test_the_locale_decides_about_ascii(monkeypatch, encoding, is_ascii):
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    assert is_ascii_only() is is_ascii
