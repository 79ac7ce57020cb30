"""Texts -> the summed loss of a decoder on them, in nats, and the number of tokens it was over.

Each text stands alone, with its begin and end; every token but the first is foreseen from those
before it. A text longer than max_len is read in parts of max_len, each without what came before,
so that its first tokens are a little harder than they would be in a longer model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import torch
import torch.nn.functional as F

from weft.core.batch import ForwardBatch
from weft.core.errors import UsageError
from weft.models.decoder import Decoder
from weft.text.batches import batches
from weft.text.collate import collate
from weft.text.tokenizer import Tokenizer


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
    model: Decoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    batch_tokens: int,
    progress: Callable[[int], None],
) -> TextLoss:
    """The loss on all texts together. White space alone is passed over."""
    kept = [text for text in texts if text.strip()]
    rows = [
        part
        for ids in tokenizer.encode_batch(kept, max_len=sys.maxsize)
        for part in parts_of(ids, model.config.max_len)
    ]
    if not rows:
        raise UsageError(
            f"none of the {len(texts)} texts has two tokens or more: there is nothing to foresee. "
            "Give text."
        )
    nats = 0.0
    for batch in batches([len(row) for row in rows], batch_tokens):
        nats += batch_loss(model, [rows[row] for row in batch])
        progress(len(batch))
    return TextLoss(nats, sum(len(row) - 1 for row in rows))


def parts_of(ids: list[int], max_len: int) -> list[list[int]]:
    """Pieces of at most max_len tokens to read and one more to foresee; each token is foreseen
    once."""
    return [ids[start : start + max_len + 1] for start in range(0, len(ids) - 1, max_len)]


@torch.inference_mode()
def batch_loss(model: Decoder, rows: Sequence[Sequence[int]]) -> float:
    """Summed over all tokens of the rows but their first."""
    device = next(model.parameters()).device
    ids_BT, lengths_B = (tensor.to(device) for tensor in collate([row[:-1] for row in rows]))
    targets_BT, _ = collate([row[1:] for row in rows])
    logits_BTV = model(ForwardBatch(ids_BT, lengths_B=lengths_B))
    is_real_BT = torch.arange(ids_BT.shape[1], device=device) < lengths_B[:, None]
    logits_NV, targets_N = logits_BTV[is_real_BT].float(), targets_BT.to(device)[is_real_BT]
    return float(F.cross_entropy(logits_NV, targets_N, reduction="sum").double())
