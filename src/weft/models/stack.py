"""A stack of layers: ids_BT -> x_BTD. Encoders and decoders are both this; they differ in the mask
and in cross-attention.

The stack builds once per forward pass what its layers share: positions, masks and the KV cache
handle (`AttentionContext`). Differs from the textbook: a causal stack needs no padding mask.
Padding is on the right, so every padded key comes after every real query, and the causal mask hides
it already. That keeps the plain causal mask, for which kernels are fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Literal, cast

import torch
from torch import Tensor, nn

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.core.kv_spec import KVRows, KVSpec
from weft.models.config import ModelConfig
from weft.nn.attention.base import AttentionContext, AttentionSlot, Mask
from weft.nn.attention.config import PatternConfig
from weft.nn.attention.heads import build_attention
from weft.nn.attention.masks import (
    Blocks,
    Causal,
    Documents,
    Global,
    MaskBase,
    Padding,
    Prefix,
    Window,
    dilated,
    strided,
)
from weft.nn.block import Block
from weft.nn.embedding import Embedding
from weft.nn.feedforward import build_feedforward
from weft.nn.norm import build_norm
from weft.nn.positions.config import LearnedConfig
from weft.nn.positions.encodings import build_position


class Stack(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, config: ModelConfig, side: Literal["encoder", "decoder"]) -> None:
        super().__init__()
        self.config, self.is_causal = config, side == "decoder"
        self.num_layers = config.layers_of(side)
        norm, width, shape = config.norm, config.width, config.position_shape(side)
        vocab_size = config.vocab_size_of(side)
        self.embedding = Embedding(config.embedding, vocab_size, width, norm, config.dropout)
        self.position = build_position(config.position, shape)
        local = config.local_position
        self.local_position = build_position(local, shape) if local else None
        self.blocks = nn.ModuleList(self.build_block(layer) for layer in range(self.num_layers))
        self.norm = build_norm(norm, width) if config.has_final_norm else nn.Identity()

    def build_block(self, layer: int) -> Block:
        config, L = self.config, self.num_layers
        norm, width = config.norm, config.width
        has_source = self.is_causal and config.kind == "encoder-decoder"
        slot, cross_slot = (
            AttentionSlot(layer, layer),
            AttentionSlot(layer, L + layer, is_cross=True),
        )
        attention = build_attention(config.attention, width, norm, slot)
        cross = build_attention(config.attention, width, norm, cross_slot) if has_source else None
        feedforward = build_feedforward(config.feedforward_of(layer), width)
        return Block(attention, cross, feedforward, norm, width, config.dropout)

    @property
    def layers(self) -> list[Block]:
        """The blocks, with their type."""
        return cast(list[Block], list(self.blocks))

    def kv_specs(self) -> list[KVSpec]:
        """What the layers store: self-attention of each layer, then cross-attention of each."""
        attentions = [block.attention.spec for block in self.layers]
        return attentions + [block.cross.spec for block in self.layers if block.cross is not None]

    def forward(self, batch: ForwardBatch) -> Tensor:
        local, full = self.contexts(batch)
        x_BTD = self.embedding(batch, self.position, full.positions_BT)
        for block in self.layers:
            x_BTD = block(x_BTD, full if block.attention.is_full else local)
        return self.norm(x_BTD)

    def forward_range(
        self, batch: ForwardBatch, begin: int, end: int, x_BTD: Tensor | None
    ) -> Tensor:
        """Layers begin to end, and the final norm after the last layer. `x_BTD`: the input of layer
        `begin`; None before layer 0."""
        local, full = self.contexts(batch)
        x_BTD = self.embed(batch) if x_BTD is None else x_BTD
        for block in self.layers[begin:end]:
            x_BTD = block(x_BTD, full if block.attention.is_full else local)
        return self.norm(x_BTD) if end == self.num_layers else x_BTD

    def embed(self, batch: ForwardBatch) -> Tensor:
        """The input of the first layer."""
        return self.embedding(batch, self.position, batch.positions_BT)

    def source_rows(self, memory_BSD: Tensor) -> Iterator[tuple[int, KVRows]]:
        """What cross-attention keeps of a source: the number of each layer's KVSpec, and rows."""
        positions_1S = torch.arange(memory_BSD.shape[1], device=memory_BSD.device)[None]
        length = memory_BSD.shape[1]
        ctx = AttentionContext(self.position, positions_1S, 0, length, memory_BSD=memory_BSD)
        for block in self.layers:
            assert block.cross is not None, "rows of a source for a stack that reads none"
            yield block.cross.slot.kv_index, block.cross.source_kv(ctx)

    def contexts(self, batch: ForwardBatch) -> tuple[AttentionContext, AttentionContext]:
        """For layers with the model's pattern, and for those that attend to all keys."""
        ctx = self.prepare(batch)
        return replace(ctx, position=self.local_position or self.position), ctx

    def prepare(self, batch: ForwardBatch) -> AttentionContext:
        """What all layers share in this pass, made once."""
        T, start = batch.ids_BT.shape[1], batch.start
        # the engine has checked the length of every sequence of a packed row
        is_packed = batch.position_ids_BT is not None
        if not is_packed:
            self.check_length(batch)
        return AttentionContext(
            position=self.position,
            positions_BT=batch.positions_BT,
            start=start,
            lengths=0 if is_packed else start + (T if batch.lengths_B is None else batch.lengths_B),
            mask=self_mask(batch, self.config.attention.pattern, self.is_causal),
            full_mask=self_mask(batch, None, self.is_causal),
            cache=batch.cache,
            memory_BSD=batch.memory_BSD,
            memory_mask=memory_mask(batch),
        )

    def check_length(self, batch: ForwardBatch) -> None:
        """Raise a UsageError for sequences that are too long for the model or for its cache."""
        T, start, config = batch.ids_BT.shape[1], batch.start, self.config
        if isinstance(start, int) and start + T > config.max_len:
            raise UsageError(
                f"the sequence has {start + T} tokens but the model's max_len is "
                f"{config.max_len}. Shorten it, or build the model with a larger max_len."
            )
        if batch.cache is None:
            return
        limit = config.max_cached_len
        if limit == config.max_len or isinstance(config.position, LearnedConfig):
            return  # a table of positions checks its length itself
        length = T + (start if isinstance(start, int) else int(start.max()))
        if length > limit:
            raise UsageError(
                f"the sequence has {length} tokens but the original_max_len of the model's dynamic "
                f"RoPE scaling is {limit}, up to which keys can be cached. Shorten it, or run it "
                "without a cache."
            )


def self_mask(batch: ForwardBatch, pattern: PatternConfig | None, is_causal: bool) -> Mask | None:
    """The mask of self-attention; None: every token attends to every token."""
    masks: list[MaskBase] = []
    if is_causal:
        masks.append(Causal() if batch.prefix_B is None else Causal() | Prefix(batch.prefix_B))
    elif batch.lengths_B is not None:
        masks.append(Padding(batch.lengths_B))
    if pattern is not None and pattern.kind != "full":
        masks.append(pattern_mask(pattern))
    if batch.documents_BT is not None:
        masks.append(Documents(batch.documents_BT))
    return reduce(and_, masks) if masks else None


def memory_mask(batch: ForwardBatch) -> Mask | None:
    """The mask of cross-attention: the real tokens of the source."""
    return None if batch.memory_lengths_B is None else Padding(batch.memory_lengths_B)


def pattern_mask(pattern: PatternConfig) -> MaskBase:
    if pattern.kind == "window":
        return Window(pattern.window)
    if pattern.kind == "dilated":
        return dilated(pattern.window, pattern.step)
    if pattern.kind == "strided":
        return strided(pattern.stride)
    if pattern.kind == "global":
        return Window(pattern.window) | Global(pattern.global_tokens)
    assert pattern.kind == "blocks" and pattern.blocks, f"no mask for pattern {pattern.kind}"
    return Blocks(torch.tensor(pattern.blocks, dtype=torch.bool), pattern.block_size)
