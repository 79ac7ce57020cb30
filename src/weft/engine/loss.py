"""Texts -> the summed loss of a decoder on them, in nats, and the number of tokens it was over.

Each text stands alone, with its begin and end; every token but the first is foreseen from those
before it. A text longer than max_len is read in parts of max_len, each without what came before,
so that its first tokens are a little harder than they would be in a longer model. Texts run packed
through an engine, without padding; no token is skipped because a cache knows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

from weft.core.errors import UsageError
from weft.engine.config import EngineConfig
from weft.engine.desk import Desk
from weft.engine.engine import Engine
from weft.models.decoder import Decoder
from weft.text.tokenizer import Tokenizer

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class TextLoss:
    """Negative log likelihood of `tokens` tokens, summed, in nats."""

    nats: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean: among how many equally likely tokens the model was torn."""
        return exp(min(self.per_token, 700.0))


def text_loss(
    model: Decoder | Desk,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    batch_tokens: int,
    progress: Callable[[int], None],
) -> TextLoss:
    """The loss on all texts together. White space alone is passed over.

    `model`: a desk, whose engine has its own budget; or a decoder, which gets an engine for this
    call that runs at most `batch_tokens` at a time.
    """
    desk = model if isinstance(model, Desk) else desk_of(model, batch_tokens)
    kept = [text for text in texts if text.strip()]
    rows = [
        part
        for ids in tokenizer.encode_batch(kept, max_len=sys.maxsize)
        for part in parts_of(ids, desk.engine.model.config.max_cached_len)
    ]
    if not rows:
        raise UsageError(
            f"none of the {len(texts)} texts has two tokens or more: there is nothing to foresee. "
            "Give text."
        )
    return TextLoss(rows_loss(desk, rows, progress), sum(len(row) - 1 for row in rows))


def parts_of(ids: list[int], max_len: int) -> list[list[int]]:
    """Pieces of at most max_len tokens to read and one more to foresee; each token is foreseen
    once."""
    return [ids[start : start + max_len + 1] for start in range(0, len(ids) - 1, max_len)]


def batch_loss(model: Decoder, rows: Sequence[Sequence[int]]) -> float:
    """Summed over all tokens of the rows but their first."""
    return rows_loss(desk_of(model, BATCH_TOKENS), rows, lambda amount: None)


def rows_loss(desk: Desk, rows: Sequence[Sequence[int]], progress: Callable[[int], None]) -> float:
    """The same on an engine that is there, which others may be using too."""
    losses = [0.0] * len(rows)
    for place, update in desk.results([desk.open_scored(row) for row in rows]):
        losses[place] = -sum(one.logprob for one in update.logprobs)
        progress(1)
    return sum(losses)  # in the order of the rows: the same sum, whoever ends first


def desk_of(model: Decoder, batch_tokens: int) -> Desk:
    return Desk(Engine(model, config=EngineConfig.for_batches(batch_tokens)))
