r"""What every kind of tokenizer is made of: a split pattern, and `learn`: lines -> a model of
`tokenizers`.

All kinds keep text as it is. A space stays a space (it goes with the word behind it), nothing is
replaced by a marker, and a character outside the vocabulary is spelled in bytes, <0x00> to <0xFF>.
So decoding is gluing, and exact. Differs from SentencePiece, whose marker for a space collides with
the same character in the text, and from GPT-2's byte alphabet, in which a Chinese character is
three strange letters.

Runs are bounded ({1,32}), so that one line of a million letters is many short words, in training
and in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokenizers import models

# digits stand alone: numbers are copied and compared digit by digit
SUBWORDS = (
    r" ?(?:(?!\p{Han})[\p{L}\p{M}]){1,32}|\p{Han}{1,32}|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,16}|\s{1,16}(?!\S)|\s{1,16}"
)
"""Letters with the space before them, Han runs, digits, punctuation, white space."""

UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
WORDS = (
    rf" ?(?:(?!{UNSPACED})[\p{{L}}\p{{M}}]){{1,64}}| ?\p{{N}}{{1,64}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]|[\p{L}\p{M}]|\s"
)
"""Whole words; in scripts that are written without spaces, each character is a word."""

BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class Plan:
    """What `learn` has to fill: `size` ids, of which the first are reserved."""

    reserved: tuple[str, ...]
    """Special tokens, then BYTE_NAMES if bytes stand in for unknown characters."""
    size: int
    min_frequency: int
    unknown: str
    byte_fallback: bool

    @property
    def room(self) -> int:
        """Ids that are left for what is learnt."""
        return max(0, self.size - len(self.reserved))

    def vocabulary(self, pieces: Iterable[str]) -> dict[str, int]:
        """Ids for the reserved tokens and then for as many pieces as there is room for."""
        reserved = set(self.reserved)
        names = [*self.reserved, *[p for p in pieces if p not in reserved][: self.room]]
        return {name: index for index, name in enumerate(names)}


@dataclass(frozen=True)
class Kind:
    """One entry of KINDS."""

    learn: Callable[[Iterable[str], Plan], models.Model]
    """Lines (readable more than once) -> a model whose ids begin with the plan's reserved
    tokens."""
    pattern: str = SUBWORDS
    """Where text is cut before the model sees it; no token crosses a cut."""
    byte_fallback: bool = True
    """Whether bytes stand in for what is not in the vocabulary, unless the settings say."""


def spelled(
    plan: Plan,
    pieces: Iterable[str],
    merges: Sequence[tuple[str, str]] = (),
    whole_words: bool = False,
) -> models.BPE:
    """A model that takes words whole (if told), else joins characters by `merges`, else spells
    bytes."""
    return models.BPE(
        plan.vocabulary(pieces),
        list(merges),
        unk_token=plan.unknown,
        byte_fallback=plan.byte_fallback,
        ignore_merges=whole_words,
    )


def count_characters(lines: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    return counts


def alphabet(counts: Counter[str], plan: Plan) -> list[str]:
    """The characters that get an id of their own, commonest first.

    Where bytes can spell the others, a character must come up `min_frequency` times, and a quarter
    of the room stays for longer pieces. Characters of equal count are all in or all out: the choice
    does not hang on hash order.
    """
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    least = plan.min_frequency if plan.byte_fallback else 1
    ranked = [char for char in ranked if counts[char] >= least]
    most = plan.room * 3 // 4 if plan.byte_fallback else plan.room
    if len(ranked) > most:
        ranked = [char for char in ranked if counts[char] > counts[ranked[most]]]
    return ranked
