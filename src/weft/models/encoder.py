"""Encoder only: ids_BT -> x_BTD, each token seeing all others (BERT); `logits` gives words back
(masked-word training), `pooled` one vector a text."""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVSpec
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.nn.head import Head, Pooler


class Encoder(nn.Module):
    """embedding -> bidirectional layers -> vectors. `pooler` is None where the settings name
    none."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Stack(config, "encoder")
        tied = config.embedding.ties_output
        self.head = Head(config.head, self.encoder.embedding.words, config.norm, tied)
        self.pooler = Pooler(config.width) if config.pooler else None

    def kv_specs(self) -> list[KVSpec]:
        """An encoder runs once over the whole text and keeps nothing."""
        return []

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.encoder(batch)

    def logits(self, batch: ForwardBatch) -> Tensor:
        return self.head(self.encoder(batch))

    def pooled(self, batch: ForwardBatch) -> Tensor:
        """One vector a text, from its first token: x_BD."""
        if self.pooler is None:
            raise UsageError(
                "this encoder has no pooler. Use the mean of its tokens' vectors, or build it with "
                "pooler = true."
            )
        return self.pooler(self.encoder(batch))
