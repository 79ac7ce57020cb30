"""The three kinds of Transformer, put together from stacks and an LM head.

Encoder           ids_BT -> x_BTD          bidirectional layers                    BERT
Decoder           ids_BT -> logits_BTV     causal layers                           GPT, Llama
EncoderDecoder    source and target ids -> logits_BTV: the decoder reads the encoder's output
                  through cross-attention                                          Vaswani 2017
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVSpec
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.nn.lm_head import LMHead, Pooler


class Encoder(nn.Module):
    """embedding -> bidirectional layers -> vectors. `logits` are for masked language modeling;
    `pooler` is None unless the config asks for one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Stack(config, "encoder")
        tied = config.embedding.ties_output
        self.head = LMHead(config.head, self.encoder.embedding.words, config.norm, tied)
        self.pooler = Pooler(config.width) if config.pooler else None

    def kv_specs(self) -> list[KVSpec]:
        """An encoder runs once over the whole text and caches nothing."""
        return []

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.encoder(batch)

    def logits(self, batch: ForwardBatch) -> Tensor:
        return self.head(self.encoder(batch))

    def pooled(self, batch: ForwardBatch) -> Tensor:
        """One vector per text, from its first token: x_BD."""
        if self.pooler is None:
            raise UsageError(
                "this encoder has no pooler. Use the mean of its tokens' vectors, or build it with "
                "pooler = true."
            )
        return self.pooler(self.encoder(batch))


class Decoder(nn.Module):
    """embedding -> causal layers -> norm -> logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Stack(config, "decoder")
        tied = config.embedding.ties_output
        self.head = LMHead(config.head, self.decoder.embedding.words, config.norm, tied)

    def kv_specs(self) -> list[KVSpec]:
        return self.decoder.kv_specs()

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.head(self.decoder(batch))


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
        self.head = LMHead(config.head, self.decoder.embedding.words, config.norm, tied)

    def kv_specs(self) -> list[KVSpec]:
        return self.decoder.kv_specs()

    def encode(self, source: ForwardBatch) -> Tensor:
        """memory_BSD: the encoder output that cross-attention reads."""
        return self.encoder(source)

    def forward(self, target: ForwardBatch, source: ForwardBatch | None = None) -> Tensor:
        """Logits of the target. `source` is encoded here unless `target` carries its memory."""
        if source is not None:
            memory = self.encode(source)
            target = replace(target, memory_BSD=memory, memory_lengths_B=source.lengths_B)
        if target.memory_BSD is None:
            raise UsageError(
                "an encoder-decoder needs a source: pass `source`, or a target with memory_BSD."
            )
        return self.head(self.decoder(target))
