"""Tokens and words of a text for a trace: Tokens -> TraceTokens and Words.

    "I ate 苹果!"  ->  I | ate | 苹果 or 苹 | 果, as the tokenizer cuts it | !

A word is a run of letters and digits, or one punctuation mark; white space separates words and
belongs to none. Scripts that are written without spaces (Chinese, Japanese, Thai, ...) are cut
where the tokenizer cuts them, without a dictionary. Words that share a token are one word, so that
each token belongs to at most one. A character whose bytes are several tokens is one word.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from weft.core.errors import UsageError
from weft.look.terminal import plural
from weft.look.trace_data import TraceToken, Word
from weft.text.tokenizer import Offset, Tokenizer, Tokens

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces: Thai, Lao, Myanmar, Khmer, kana, Han."""
APOSTROPHES = "'\u2019"


def trace_tokens(
    tokenizer: Tokenizer, tokens: Tokens, text: str
) -> tuple[tuple[TraceToken, ...], tuple[Word, ...]]:
    """The tokens of a text with bytes and words, and its words."""
    words = words_of(text, tokens.offsets)
    word_of = {token: index for index, word in enumerate(words) for token in word.tokens}
    special = special_ids(tokenizer)
    values = zip(tokens.ids, tokenizer.token_bytes(tokens.ids), tokens.offsets, strict=True)
    return tuple(
        TraceToken(
            i=i,
            id=index,
            text=readable(data),
            bytes=data.hex(),
            span=(start, end),
            word=word_of.get(i),
            is_special=index in special,
        )
        for i, (index, data, (start, end)) in enumerate(values)
    ), words


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of begin, end, padding and other tokens that are not text."""
    added = tokenizer.backend.get_added_tokens_decoder()
    return frozenset(index for index, token in added.items() if token.special)


def readable(data: bytes) -> str:
    """The bytes as text; in hex, "E8 8B", if they are not valid UTF-8 by themselves."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex(" ").upper()


def words_of(text: str, offsets: Sequence[Offset]) -> tuple[Word, ...]:
    """The words of a text and the tokens of each."""
    segments = split_text(text, offsets)
    places = [places_of(segments, offset) for offset in offsets]
    is_joined = [False] * len(segments)
    for place in places:
        for index in place[1:]:
            is_joined[index] = True
    starts = [i for i, joined in enumerate(is_joined) if not joined]
    word_of = [bisect_right(starts, i) - 1 for i in range(len(segments))]
    tokens: list[list[int]] = [[] for _ in starts]
    for i, place in enumerate(places):
        if place:
            tokens[word_of[place[0]]].append(i)
    spans = [
        (segments[first][0], segments[end - 1][1])
        for first, end in pairwise([*starts, len(segments)])
    ]
    pairs = zip(spans, tokens, strict=True)
    return tuple(Word(text[slice(*span)], span, tuple(ids)) for span, ids in pairs if ids)


def places_of(segments: Sequence[Offset], offset: Offset) -> range:
    """Indices of the ranges that share a character with a token."""
    first = bisect_right(segments, offset[0], key=lambda segment: segment[1])
    return range(first, max(first, bisect_left(segments, offset[1], key=lambda one: one[0])))


def overlaps(a: Offset, b: Offset) -> bool:
    """Whether two ranges share a character."""
    return a[0] < b[1] and b[0] < a[1]


def split_text(text: str, offsets: Sequence[Offset]) -> list[Offset]:
    """Ranges of characters: words, punctuation marks, pieces of unspaced scripts."""
    cuts = {end for offset in offsets for end in offset}
    segments: list[Offset] = []
    start, previous = 0, "space"
    for i, kind in enumerate([*kinds_of(text), "space"]):
        is_joined = kind == previous and kind != "mark" and not (kind == "unspaced" and i in cuts)
        if is_joined:
            continue
        if previous != "space":
            segments.append((start, i))
        start, previous = i, kind
    return segments


def kinds_of(text: str) -> list[str]:
    """The kind of each character: space, unspaced, mark (punctuation) or letter."""
    kinds = [kind_of_char(char) for char in text]
    for i in range(1, len(text) - 1):
        is_inside = kinds[i - 1] == "letter" and kinds[i + 1] == "letter"
        if text[i] in APOSTROPHES and is_inside:
            kinds[i] = "letter"
    return kinds


def kind_of_char(char: str) -> str:
    if char.isspace():
        return "space"
    if UNSPACED.match(char):
        return "unspaced"
    category = unicodedata.category(char)
    return "letter" if category[0] in "LNM" or char == "_" else "mark"


def tokens_of_text(tokens: Sequence[TraceToken], text: str, phrase: str) -> tuple[int, ...]:
    """The tokens that share a character with a phrase. `phrase#2`: its second occurrence."""
    name, number = phrase, 1
    match = re.fullmatch(r"(.+)#(\d{1,6})", phrase, flags=re.DOTALL)
    if match and phrase not in text:
        name, number = match[1], int(match[2])
    starts = occurrences(text, name)
    if not starts:
        raise UsageError(
            f"'{name}' is not in the text. Use a part of the text as it is written there, and for "
            "its second occurrence add #2."
        )
    if not 1 <= number <= len(starts):
        raise UsageError(
            f"'{phrase}' is not in the text: '{name}' occurs {plural(len(starts), 'time')} there. "
            f"Use {name}#1 to {name}#{len(starts)}."
        )
    if len(starts) > 1 and match is None:
        raise UsageError(
            f"'{name}' occurs {len(starts)} times in the text. Use {name}#1 to "
            f"{name}#{len(starts)}."
        )
    span = starts[number - 1], starts[number - 1] + len(name)
    return tuple(token.i for token in tokens if overlaps(token.span, span))


def occurrences(text: str, phrase: str) -> list[int]:
    """Where a phrase begins, without overlaps."""
    return [match.start() for match in re.finditer(re.escape(phrase), text)] if phrase else []
