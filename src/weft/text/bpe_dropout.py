"""BPE-dropout (Provilkov 2020): text -> ids in which each possible merge is left out with some
probability, anew at every step, so that a model sees one word in many spellings.

Differs from the library's own dropout, which cannot be seeded: here the draws come from the
caller's `random.Random`, so that a resumed run sees the very same ids. With dropout 0 the ids
are those of the library.
"""

from __future__ import annotations

import json
import random

from tokenizers import Tokenizer as Backend

from weft.core.errors import UsageError
from weft.text.kinds.base import BYTE_NAMES


class BpeDropout:
    """The merges of one BPE tokenizer, applied in Python."""

    def __init__(self, backend: Backend) -> None:
        model = json.loads(backend.to_str())["model"]
        refuse_unfit(model)
        self.backend = backend
        self.ids: dict[str, int] = model["vocab"]
        self.ranks = {pair_of(merge): rank for rank, merge in enumerate(model["merges"])}
        self.unknown = self.ids.get(model.get("unk_token") or "")
        self.byte_ids = [self.ids.get(name) for name in BYTE_NAMES]

    def encode(self, text: str, dropout: float, rng: random.Random) -> list[int]:
        """Ids of `text` without begin and end. Draws from `rng` depend on `text` alone."""
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
        """Join the best-ranked pair that survived its draw, until none is left."""
        ranks = self.ranks
        while len(symbols) > 1:
            best, place = None, 0
            for index in range(len(symbols) - 1):
                rank = ranks.get((symbols[index], symbols[index + 1]))
                if rank is None or (dropout and rng.random() < dropout):
                    continue
                if best is None or rank < best:
                    best, place = rank, index
            if best is None:
                break
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        return symbols

    def symbol_ids(self, symbol: str) -> list[int]:
        """The symbol's id, else the ids of its bytes, else the unknown id."""
        known = self.ids.get(symbol)
        if known is not None:
            return [known]
        spelled = [self.byte_ids[byte] for byte in symbol.encode()]
        found = [byte for byte in spelled if byte is not None]
        if len(found) == len(spelled):
            return found
        return [] if self.unknown is None else [self.unknown]


def pair_of(merge: str | list[str]) -> tuple[str, str]:
    """A merge as a pair; old files write it as one string."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def refuse_unfit(model: dict[str, object]) -> None:
    """A UsageError for a tokenizer that has no merges or marks the parts of words."""
    kind = model.get("type")
    if kind != "BPE" or not model.get("merges"):
        raise UsageError(
            f"dropout needs a tokenizer with merges, but this one is a {kind} model without them. "
            "Use dropout=0, or a tokenizer of kind 'bpe'."
        )
    marks = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    if any(marks):
        raise UsageError(
            f"dropout does not know BPE that marks parts of words (here by {marks}). Use dropout=0."
        )
