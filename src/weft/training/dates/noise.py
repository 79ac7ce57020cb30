"""What people do to dates: another case, plain spaces, and slips of the finger in names.

A slip swaps two neighbouring letters of a name, drops one or types one twice; never in numbers. It
is used only if the name, so misspelt, can still be one month alone, in all languages together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from weft.training.dates.languages import Language
from weft.training.dates.write import Piece

SHORTEST = 4
"""Letters that a name must have before a slip: "Jun" without a letter could be two months."""

TYPED = {0x202F: " ", 0xA0: " ", 0x200F: None, 0x200E: None}
"""What keyboards have in place of CLDR's narrow or unbreakable spaces and direction marks."""

TO_UPPER = str.maketrans({"i": "\u0130", "\u0131": "I"})
TO_LOWER = str.maketrans({"\u0130": "i", "I": "\u0131"})
"""Turkish has an i with and one without a dot, each in both cases."""


def upper(text: str, tag: str) -> str:
    return (text.translate(TO_UPPER) if tag == "tr" else text).upper()


def lower(text: str, tag: str) -> str:
    return (text.translate(TO_LOWER) if tag == "tr" else text).lower()


def slips(name: str) -> list[str]:
    """All spellings one slip away, except in the first letter, which people rarely miss."""
    found = []
    for i in range(1, len(name)):
        if not name[i].isalpha():
            continue
        found += [name[:i] + name[i + 1 :], name[:i] + name[i] + name[i:]]
        if i + 1 < len(name) and name[i + 1].isalpha() and name[i] != name[i + 1]:
            found.append(name[:i] + name[i + 1] + name[i] + name[i + 2 :])
    return found


class Slips:
    """The slips that leave a month readable."""

    def __init__(self, languages: Iterable[Language]) -> None:
        self.months: dict[str, set[int]] = {}
        for language in languages:
            for names in language.months.values():
                for number, name in enumerate(names, start=1):
                    for spelling in (name, *slips(name)):
                        self.months.setdefault(spelling.casefold(), set()).add(number)

    def choices(self, piece: Piece) -> list[str]:
        """Misspellings of a month or weekday that cannot be taken for another month."""
        if piece.kind not in ("month", "weekday") or sum(map(str.isalpha, piece.text)) < SHORTEST:
            return []
        own = self.months.get(piece.text.casefold(), set()) if piece.kind == "month" else set()
        return [s for s in slips(piece.text) if self.months.get(s.casefold(), own) == own]

    def apply(self, pieces: list[Piece], rng: random.Random) -> list[Piece]:
        """One name misspelt, where one can be."""
        open_to = [(i, found) for i, p in enumerate(pieces) if (found := self.choices(p))]
        if not open_to:
            return pieces
        index, found = rng.choice(open_to)
        changed = Piece(rng.choice(found), pieces[index].kind)
        return [*pieces[:index], changed, *pieces[index + 1 :]]
