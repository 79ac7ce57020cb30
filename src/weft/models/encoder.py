"""Encoder only: ids_BT -> x_BTD, each token seeing all others (BERT); `logits` gives words back
(masked-word training)."""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.batch import ForwardBatch
from weft.core.kv import KVSpec
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.nn.head import Head


class Encoder(nn.Module):
    """embedding -> bidirectional layers -> vectors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Stack(config, "encoder")
        tied = config.embedding.tied != "none"
        self.head = Head(config.head, self.encoder.embedding.words, config.norm, tied)

    def kv_specs(self) -> list[KVSpec]:
        """An encoder runs once over the whole text and keeps nothing."""
        return []

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.encoder(batch)

    def logits(self, batch: ForwardBatch) -> Tensor:
        return self.head(self.encoder(batch))
