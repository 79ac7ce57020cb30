"""`TokenizerConfig`: everything that decides which tokenizer a corpus becomes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from weft.core.choices import pick
from weft.core.config import Config
from weft.core.errors import ConfigError, Problem
from weft.text.kinds import KINDS
from weft.text.kinds.base import BYTE_NAMES, Plan

SPECIAL_FORM = re.compile(r"[^\w\s]+[^\W_](.*\S)?", re.DOTALL)
"""A mark and then a letter: no token of ordinary text has that form, as text is cut between the
two."""


class TokenizerConfig(Config):
    """How a tokenizer is trained and what it does to text."""

    kind: str = "bpe"
    """character, word, bpe, unigram or byte."""
    vocab_size: int = Field(default=8000, ge=1)
    """At most this many ids, special tokens included. byte: always the 256 bytes and the special
    tokens."""
    min_frequency: int = Field(default=2, ge=1)
    """A character, word or joined pair must come up this often in the training text."""
    normalise: Literal["none", "nfc", "nfkc"] = "none"
    """none: text comes back exactly. nfc, nfkc: Unicode's composed or compatibility form comes
    back."""
    lowercase: bool = False
    """True: upper case is lost, and text comes back in lower case."""
    byte_fallback: bool | None = None
    """Spell what is not in the vocabulary in bytes. None: yes, but a word kind makes it unknown."""
    max_len: int | None = Field(default=None, ge=1)
    """Cut longer texts, begin and end included, and count them. None: never."""
    pad: str = "<pad>"
    begin: str = "<begin>"
    end: str = "<end>"
    unknown: str = "<unknown>"
    mask: str = "<mask>"
    extra_special: tuple[str, ...] = ()
    """Further special tokens, such as "<de>" for a target language. They follow the five above."""
    add_begin: bool = True
    """Put `begin` before every text."""
    add_end: bool = True
    """Put `end` after every text."""
    sample_bytes: int = Field(default=16 << 20, ge=1 << 20)
    """Learn from at most this much text, drawn evenly from all of it; the rest is not needed for
    good pieces."""
    seed: int = 0
    """Decides which lines are drawn."""

    @property
    def special(self) -> tuple[str, ...]:
        """All special tokens, in the order of their ids."""
        return (self.pad, self.begin, self.end, self.unknown, self.mask, *self.extra_special)

    @property
    def falls_back(self) -> bool:
        """Whether bytes stand in for what is not in the vocabulary."""
        return KINDS[self.kind].byte_fallback if self.byte_fallback is None else self.byte_fallback

    @property
    def plan(self) -> Plan:
        reserved = (*self.special, *(BYTE_NAMES if self.falls_back else ()))
        size = max(len(reserved), self.vocab_size)
        return Plan(reserved, size, self.min_frequency, self.unknown, self.falls_back)

    def cross_checks(self) -> Iterable[Problem]:
        yield from self.special_problems()
        try:
            pick(KINDS, self.kind, "kind of tokenizer")
        except ConfigError as error:
            yield Problem(str(error), ("kind",))
            return
        if self.kind == "byte" and not self.falls_back:
            text = (
                "byte_fallback is False but kind is 'byte': bytes are all it has. "
                "Leave byte_fallback out."
            )
            yield Problem(text, ("kind", "byte_fallback"))
        elif self.kind != "byte" and self.vocab_size <= len(self.plan.reserved):
            yield self.no_room()

    def no_room(self) -> Problem:
        taken = len(self.plan.reserved)
        bytes_too = " and the 256 bytes" if self.falls_back else ""
        advice = ", or set byte_fallback to False" if self.falls_back else ""
        return Problem(
            f"vocab_size is {self.vocab_size} but the special tokens{bytes_too} take {taken} ids: "
            f"nothing could be learnt. Use more than {taken}{advice}.",
            ("vocab_size", "byte_fallback"),
        )

    def special_problems(self) -> Iterable[Problem]:
        """Special tokens must differ from each other and from anything that text can become."""
        for name in self.special:
            if not SPECIAL_FORM.fullmatch(name) or name in BYTE_NAMES:
                yield Problem(
                    f"special token {name!r} could be ordinary text: it must begin with a mark "
                    "that a letter follows and must not name a byte. Write it like '<name>'.",
                )
            elif self.special.count(name) > 1:
                text = (
                    f"special token {name!r} is given twice: each needs its own name. Rename one."
                )
                yield Problem(text)
