"""Decoder only: ids_BT -> logits_BTV, each from the tokens before it (GPT, Llama)."""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVSpec
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.nn.head import Head


class Decoder(nn.Module):
    """embedding -> causal layers -> norm -> logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Stack(config, "decoder")
        tied = config.embedding.ties_output
        self.head = Head(config.head, self.decoder.embedding.words, config.norm, tied)

    def kv_specs(self) -> list[KVSpec]:
        return self.decoder.kv_specs()

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.head(self.decoder(batch))
