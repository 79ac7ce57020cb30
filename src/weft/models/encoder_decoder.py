"""Encoder-decoder: source ids and target ids -> logits_BTV (Vaswani 2017).

memory = encode(source)                  every source token sees every other
logits = forward(target with memory)     target tokens see earlier ones, and all of the source
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVSpec
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.nn.head import Head


class EncoderDecoder(nn.Module):
    """Two stacks; the second reads the first through cross-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Stack(config, "encoder")
        self.decoder = Stack(config, "decoder")
        if config.embedding.ties_source:
            self.encoder.embedding.words = self.decoder.embedding.words
        tied = config.embedding.ties_output
        self.head = Head(config.head, self.decoder.embedding.words, config.norm, tied)

    def kv_specs(self) -> list[KVSpec]:
        return self.decoder.kv_specs()

    def encode(self, source: ForwardBatch) -> Tensor:
        """memory_BSD: what cross-attention will read."""
        return self.encoder(source)

    def forward(self, target: ForwardBatch, source: ForwardBatch | None = None) -> Tensor:
        """Logits of the target. `source` is encoded here unless `target` already carries its
        memory."""
        if source is not None:
            memory = self.encode(source)
            target = replace(target, memory_BSD=memory, memory_lengths_B=source.lengths_B)
        if target.memory_BSD is None:
            raise UsageError(
                "an encoder-decoder needs a source: pass `source`, or a target with memory_BSD."
            )
        return self.head(self.decoder(target))
