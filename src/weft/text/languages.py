"""Language codes of translation models: BCP 47 codes such as en, zh-Hans, pt-BR.

languages_of_files([Path("train.en"), Path("train.de.gz")])     ("en", "de")
parse_languages(["demo=en:de"])                                 {"demo": ("en", "de")}
language_name("de")                                             German
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from babel import Locale

from weft.core.errors import UsageError

CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")

LanguagePair = tuple[str, str]
"""Source and target."""


def language_pair(codes: Sequence[str]) -> LanguagePair:
    """Two codes, checked."""
    if len(codes) != 2:
        raise UsageError(
            f"{len(codes)} languages were given: a translation model has two. Use for example "
            "--languages en de."
        )
    for code in codes:
        if not CODE.fullmatch(code):
            raise UsageError(
                f"'{code[:40]}' is not a language code. Use codes such as en, de or zh-Hans."
            )
    return codes[0], codes[1]


def languages_of_files(paths: Sequence[Path]) -> LanguagePair | None:
    """The languages by which a source and a target file are named; None if they are not."""
    codes = [path.name.removesuffix(".gz").rpartition(".")[2] for path in paths]
    are_known = all(CODE.fullmatch(code) and is_known_code(code) for code in codes)
    return (codes[0], codes[1]) if len(set(codes)) == 2 and are_known else None


def is_known_code(code: str) -> bool:
    return code.partition("-")[0] in Locale("en").languages


def language_name(code: str) -> str:
    """The English name of a language; the code itself if it is not known."""
    known = Locale("en").languages
    if code in known:
        return str(known[code])
    base, _, rest = code.partition("-")
    return f"{known[base]} ({rest})" if base in known else code


def parse_languages(arguments: Sequence[str]) -> dict[str, LanguagePair]:
    """Arguments `NAME=SRC:TGT` of `weft serve --languages` -> {name: languages}."""
    pairs: dict[str, LanguagePair] = {}
    for argument in arguments:
        name, equals, codes = argument.rpartition("=")
        parts = codes.split(":")
        if not name or not equals or len(parts) != 2:
            raise UsageError(
                f"--languages '{argument[:80]}' is not NAME=SRC:TGT. Use for example demo=en:de."
            )
        pairs[name] = language_pair(parts)
    return pairs
