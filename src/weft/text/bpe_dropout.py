"""BPE-dropout (Provilkov 2020): text -> ids, where each possible merge is skipped with some
probability, so that a model sees a word in several segmentations.

Differs from the library's dropout, which cannot be seeded: the draws come from the caller's
`random.Random`, so that a resumed run gets the same ids. With dropout 0 the ids are those of the
library.
"""

from __future__ import annotations

import json
import random

from tokenizers import Tokenizer as Backend

from weft.core.errors import UsageError
from weft.text.tokenizer_kinds import BYTE_NAMES


class BpeDropout:
    """The merges of one BPE tokenizer, applied in Python."""

    def __init__(self, backend: Backend) -> None:
        model = json.loads(backend.to_str())["model"]
        check_supported(model)
        self.backend = backend
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {pair_of(merge): rank for rank, merge in enumerate(model["merges"])}
        self.unknown = self.ids.get(model.get("unk_token") or "")
        self.byte_ids = [self.ids.get(name) for name in BYTE_NAMES]

    def encode(self, text: str, dropout: float, rng: random.Random) -> list[int]:
        """Ids of `text` without begin and end. The number of draws depends only on `text`."""
        ids: list[int] = []
        for word in self.words(text):
            for symbol in self.merge(list(word), dropout, rng):
                ids.extend(self.symbol_ids(symbol))
        return ids

    def words(self, text: str) -> list[str]:
        backend = self.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        if backend.pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

    def merge(self, symbols: list[str], dropout: float, rng: random.Random) -> list[str]:
        """Merge the best-ranked pair that is not dropped, until none is left."""
        ranks = self.ranks
        while len(symbols) > 1:
            best, best_index = None, 0
            for index in range(len(symbols) - 1):
                rank = ranks.get((symbols[index], symbols[index + 1]))
                if rank is None or (dropout and rng.random() < dropout):
                    continue
                if best is None or rank < best:
                    best, best_index = rank, index
            if best is None:
                break
            merged = symbols[best_index] + symbols[best_index + 1]
            symbols[best_index : best_index + 2] = [merged]
        return symbols

    def symbol_ids(self, symbol: str) -> list[int]:
        """The symbol's id, else the ids of its bytes, else the unknown id."""
        known = self.ids.get(symbol)
        if known is not None:
            return [known]
        byte_ids = [self.byte_ids[byte] for byte in symbol.encode()]
        known_ids = [byte_id for byte_id in byte_ids if byte_id is not None]
        if len(known_ids) == len(byte_ids):
            return known_ids
        return [] if self.unknown is None else [self.unknown]


def pair_of(merge: str | list[str]) -> tuple[str, str]:
    """A merge as a pair; old files write it as one string."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def check_supported(model: dict[str, object]) -> None:
    """Raise a UsageError for a tokenizer without merges or with markers for parts of words."""
    kind = model.get("type")
    if kind != "BPE" or not model.get("merges"):
        raise UsageError(
            f"dropout needs a tokenizer with merges, but this one is a {kind} model without them. "
            "Use dropout=0, or a tokenizer of kind 'bpe'."
        )
    marks = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    if any(marks):
        raise UsageError(
            f"dropout does not support BPE that marks parts of words (here by {marks}). "
            "Use dropout=0."
        )
