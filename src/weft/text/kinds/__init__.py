"""The kinds of tokenizer. A new one is a file with a `KIND` and a line here."""

from __future__ import annotations

from weft.text.kinds import bpe, byte, character, unigram, word
from weft.text.kinds.base import Kind

KINDS: dict[str, Kind] = {
    "character": character.KIND,
    "word": word.KIND,
    "bpe": bpe.KIND,
    "unigram": unigram.KIND,
    "byte": byte.KIND,
}
