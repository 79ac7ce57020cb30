"""Language codes: from file names and arguments, and their English names."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.core.errors import UsageError
from weft.text.languages import language_name, languages_of_files, parse_languages


@pytest.mark.parametrize(
    "names, languages",
    [
        (("train.en", "train.de"), ("en", "de")),
        (("a/train.en.gz", "b/x.zh-Hans"), ("en", "zh-Hans")),
        (("train.src", "train.tgt"), None),
        (("train.txt", "train.de"), None),
        (("one.en", "two.en"), None),
        (("en", "de"), ("en", "de")),
        (("train.en",), None),
    ],
)
def test_languages_are_read_from_suffixes(names, languages):
    assert languages_of_files([Path(name) for name in names]) == languages


def test_arguments_are_names_and_two_codes():
    pairs = parse_languages(["demo=en:de", "a=b=zh-Hans:pt-BR"])
    assert pairs == {"demo": ("en", "de"), "a=b": ("zh-Hans", "pt-BR")}


@pytest.mark.parametrize("argument", ["en:de", "=en:de", "demo=en", "demo=en:de:fr", "demo"])
def test_other_arguments_are_refused(argument):
    with pytest.raises(UsageError, match=f"'{argument}' is not NAME=SRC:TGT"):
        parse_languages([argument])


def test_a_wrong_code_is_named():
    with pytest.raises(UsageError, match="'E' is not a language code"):
        parse_languages(["demo=E:de"])


def test_names_are_english():
    codes = ["de", "zh-Hans", "pt-BR", "tok", "qxx", "de-1996"]
    assert [language_name(code) for code in codes] == [
        "German",
        "Chinese (Hans)",
        "Portuguese (BR)",
        "Toki Pona",
        "qxx",
        "German (1996)",
    ]
