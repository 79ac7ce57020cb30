"""What the compiled layers of one pass are given: positions, pages, and memory between the parts.

Made once a pass and kept in its `AttentionContext`, for all layers that share mask, positions and
layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.core.kv_spec import KVRows, PageLayout
from weft.native.attention_kernels import layout_pointers
from weft.native.structs import (
    HeadsStruct,
    LayerPassStruct,
    LayerStruct,
    PagedStruct,
    TurnsStruct,
)
from weft.nn.attention.base import AttentionContext
from weft.nn.attention.layer import Attention
from weft.nn.attention.paged_attention import MaskSpan, mask_span
from weft.nn.positions.base import Position
from weft.nn.positions.rotary import Rotary

NAME = "compiled"
LITTLE = 2**18
"""Multiply-adds of a layer that one thread does sooner than two."""


@dataclass(frozen=True)
class LayerSize:
    """What a layer needs for each token."""

    room: int
    """Numbers between the parts, as struct Between of layer.cpp cuts them."""
    work: int
    """Multiply-adds of its products."""

    @classmethod
    def of(cls, layers: Sequence[LayerStruct]) -> LayerSize:
        """Of the largest."""
        each = [cls.of_one(layer) for layer in layers]
        return cls(max(size.room for size in each), max(size.work for size in each))

    @classmethod
    def of_one(cls, layer: LayerStruct) -> LayerSize:
        own, cross, inner = layer.own, layer.cross, layer.inner * (1 + layer.is_gated)
        row = max(row_of(own), cross.heads * cross.head_size)
        joined = max(heads.heads * heads.value_size for heads in (own, cross))
        between = row + joined + inner + layer.inner
        return cls(2 * layer.width + between, layer.width * between)


class CompiledPass:
    """What layers of a pass share that have the same positions and the same mask: a structure for
    each layout that they have."""

    def __init__(self, ctx: AttentionContext, is_full: bool, rows: int) -> None:
        mask = ctx.full_mask if is_full else ctx.mask
        # not the pass itself, which keeps this: both would stay until Python looks for garbage
        self.cache: Any = ctx.cache
        self.position: Any = ctx.position
        self.spans = mask_span(mask), mask_span(ctx.memory_mask)
        self.is_possible = None not in self.spans and is_known(ctx.position)
        self.rows, self.threads = rows, torch.get_num_threads()
        self.scratches: dict[int, Tensor] = {}
        self.turns: tuple[Tensor, Tensor] | None = None
        """A row for each position, and the positions of this pass."""
        if self.is_possible and isinstance(ctx.position, Rotary):
            positions_1N = ctx.positions_BT.long().contiguous()
            self.turns = ctx.position.table.covering(positions_1N), positions_1N
        self.structs: dict[tuple[int, ...], LayerPassStruct] = {}

    @classmethod
    def of(cls, ctx: AttentionContext, is_full: bool, rows: int) -> CompiledPass:
        """The pass's own; made when its first layer asks."""
        known: dict[bool, CompiledPass] = ctx.__dict__.setdefault(NAME, {})
        if is_full not in known:
            known[is_full] = cls(ctx, is_full, rows)
        return known[is_full]

    def struct(
        self, own: Attention, cross: Attention | None, size: LayerSize
    ) -> LayerPassStruct | None:
        """What a layer and those that share its layouts are given; None where mask, positions or
        cache ask for something that the library does not know."""
        cache = self.cache
        layout, source_layout = layouts_of(cache, own, cross)
        if not self.is_possible or layout is None:
            return None
        # blocks that are run one by one may need more room than those before them
        key = id(layout), id(source_layout), size.room
        struct = self.structs.get(key)
        if struct is None:
            rows, slots_N = cache.write_slots(own.slot.kv_index, own.spec)
            struct = self.structs[key] = self.make(size, slots_N)
            self.describe(struct.own, layout, rows, own, self.spans[0])
            if cross is not None:
                assert source_layout is not None, "a source without pages"
                sources = source_of(cache, cross)
                self.describe(struct.cross, source_layout, sources, cross, self.spans[1])
        return struct

    def make(self, size: LayerSize, slots_N: Tensor) -> LayerPassStruct:
        """Rows, threads, memory between the parts, and turns."""
        if size.room not in self.scratches:
            numbers = max(1, self.rows * size.room)
            self.scratches[size.room] = torch.empty(numbers, dtype=torch.float32, device="cpu")
        scratch = self.scratches[size.room]
        threads = threads_for(self.rows, size, self.threads)
        struct = LayerPassStruct(scratch.data_ptr(), slots_N.data_ptr(), self.rows, threads)
        if self.turns is not None:
            position = self.position
            table, positions_1N = self.turns  # table [P, 2, 1, O]
            addresses = (
                table.data_ptr(),
                table.data_ptr() + 4 * table.stride(1),
                positions_1N.data_ptr(),
            )
            is_interleaved = position.config.layout == "interleaved"
            struct.turns = TurnsStruct(*addresses, table.stride(0), position.size, is_interleaved)
        return struct

    def describe(
        self,
        call: PagedStruct,
        layout: PageLayout,
        rows: KVRows,
        layer: Attention,
        span: MaskSpan | None,
    ) -> None:
        """All of a call that does not change from layer to layer."""
        k_PRKC, v_PRKC = rows["k"], rows["v"]
        assert span is not None, "a mask that the kernel does not know"
        call.offsets, call.starts, call.lengths, call.table, call.order = layout_pointers(layout)
        (call.k_page, call.k_row, call.k_head, _) = k_PRKC.stride()
        (call.v_page, call.v_row, call.v_head, _) = v_PRKC.stride()
        (_, call.page_rows, call.key_heads, call.head_size) = k_PRKC.shape
        call.value_size, call.heads = v_PRKC.shape[3], layer.config.num_heads
        call.sequences, call.table_stride = len(layout.lengths_B), layout.table_BP.shape[1]
        call.is_causal, call.window = span.is_causal, span.window or 0
        call.scale, call.softcap = layer.scale, layer.config.softcap or 0.0
        call.threads = self.threads


def threads_for(rows: int, size: LayerSize, threads: int) -> int:
    """One, where others would come too late to help."""
    return 1 if rows * size.work < LITTLE else threads


def row_of(heads: HeadsStruct) -> int:
    """Numbers of a token's queries, keys and values."""
    size: int = heads.heads * heads.head_size
    size += heads.key_heads * (heads.head_size + heads.value_size)
    return size


def is_known(position: Position) -> bool:
    """Whether it turns pairs or does nothing inside a layer."""
    kind = type(position)
    is_turn = kind is Rotary and not position.turns_late
    hooks = ("rotate_queries", "rotate_keys", "bias")
    return is_turn or all(getattr(kind, name) is getattr(Position, name) for name in hooks)


def layouts_of(
    cache: Any, own: Attention, cross: Attention | None
) -> tuple[PageLayout | None, PageLayout | None]:
    """Where the keys of a layer lie, and those of its source."""
    source = None if cross is None else cache.layout(cross.slot.kv_index)
    return cache.layout(own.slot.kv_index), source


def source_of(cache: Any, cross: Attention) -> KVRows:
    """The rows of all sources."""
    rows: KVRows = cache.source(cross.slot.kv_index, nothing)
    return rows


def nothing() -> dict[str, Tensor]:
    raise AssertionError("the rows of a source are written before it is read")
