"""Embedding: ids_BT -> x_BTD. Word embedding, scaled, plus position and segment embedding.

Differs from the textbook: the layout is [batch, tokens, width], so the vector of a token is
contiguous.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.forward_batch import ForwardBatch
from weft.nn.config import EmbeddingConfig, NormConfig
from weft.nn.dropout import Dropout
from weft.nn.norm import build_norm
from weft.nn.positions.base import Position


class Embedding(nn.Module):
    """x = norm(words[id] * scale + position + segments[segment]), then dropout."""

    def __init__(
        self, config: EmbeddingConfig, vocab_size: int, width: int, norm: NormConfig, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, width)
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.scale = width**0.5 if config.scale else 1.0
        self.norm = build_norm(norm, width) if config.norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, batch: ForwardBatch, position: Position, positions_BT: Tensor) -> Tensor:
        x_BTD = self.words(batch.ids_BT)
        if self.scale != 1.0:
            x_BTD = x_BTD * self.scale
        x_BTD = position.add(x_BTD, positions_BT)
        if self.segments is not None:
            first = batch.ids_BT.new_zeros(())
            segments = first if batch.segments_BT is None else batch.segments_BT
            x_BTD = x_BTD + self.segments(segments)
        return self.dropout(self.norm(x_BTD))
