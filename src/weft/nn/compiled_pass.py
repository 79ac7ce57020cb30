"""What the compiled layers of one pass are given: positions, pages, and memory between the parts.

Made by the first layer of a pass and kept in its `Pass`; from layer to layer only addresses change.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.core.kv import PageLayout
from weft.nn.attention.heads import GroupedAttention
from weft.nn.attention.kernels.paged import pointers
from weft.nn.attention.layer import Pass
from weft.nn.attention.packed import Reach, reach_of
from weft.nn.native.library import native
from weft.nn.native.structs import HeadsStruct, LayerPassStruct, LayerStruct, PagedStruct
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
    def of(cls, layer: LayerStruct) -> LayerSize:
        own, cross, inner = layer.own, layer.cross, layer.inner * (1 + layer.is_gated)
        row = max(row_of(own), cross.heads * cross.head_size)
        joined = max(heads.heads * heads.value_size for heads in (own, cross))
        between = row + joined + inner + layer.inner
        heads = max(own.heads, cross.heads)
        return cls(2 * layer.width + between + heads, layer.width * between)


class CompiledPass:
    """One structure for all layers of a pass that have the same positions and the same mask."""

    def __init__(self, given: Pass, is_full: bool, rows: int) -> None:
        mask = given.full_mask if is_full else given.mask
        self.given, self.reaches = given, (reach_of(mask), reach_of(given.memory_mask))
        self.is_possible = None not in self.reaches and is_known(given.position)
        self.struct, self.scratch = LayerPassStruct(), torch.empty(0)
        self.layouts: list[PageLayout | None] = [None, None]
        self.struct.rows = self.rows = rows
        self.threads = torch.get_num_threads()
        if self.is_possible and isinstance(given.position, Rotary):
            self.turns = self.set_turns(given.position)

    @classmethod
    def of(cls, given: Pass, is_full: bool, rows: int) -> CompiledPass:
        """The pass's own; made when its first layer asks."""
        known: dict[bool, CompiledPass] = given.__dict__.setdefault(NAME, {})
        if is_full not in known:
            known[is_full] = cls(given, is_full, rows)
        return known[is_full]

    def set_turns(self, position: Rotary) -> tuple[Tensor, Tensor]:
        cos, sin = position.turns_at(self.given.positions_BT, self.given.lengths, torch.float32)
        if cos.stride() != sin.stride() or cos.stride(-1) != 1:
            cos, sin = cos.contiguous(), sin.contiguous()
        turns = self.struct.turns
        turns.cos, turns.sin, turns.stride = cos.data_ptr(), sin.data_ptr(), cos.stride(1)
        turns.size, turns.is_interleaved = position.size, position.config.layout == "interleaved"
        return cos, sin

    def run(
        self,
        layer: LayerStruct,
        size: LayerSize,
        own: GroupedAttention,
        cross: GroupedAttention | None,
        x_1ND: Tensor,
    ) -> Tensor | None:
        """y_1ND; None where mask, positions or cache ask for something else."""
        cache: Any = self.given.cache
        if not self.is_possible or cache.layout(own.place.slot) is None:
            return None
        struct, library = self.struct, native()
        assert library is not None, "weights were packed for a library that is not there"
        rows, slots_N = cache.target(own.place.slot, own.spec)
        self.point(0, struct.own, own, rows)
        struct.slots = slots_N.data_ptr()
        if cross is not None:
            self.point(1, struct.cross, cross, cache.source(cross.place.slot, nothing))
        x_1ND, y_1ND = x_1ND.contiguous(), torch.empty(x_1ND.shape)
        struct.x, struct.y = x_1ND.data_ptr(), y_1ND.data_ptr()
        self.make_room(size)
        library.layer(ctypes.addressof(layer), ctypes.addressof(struct))
        return y_1ND

    def point(
        self, which: int, call: PagedStruct, layer: GroupedAttention, rows: dict[str, Tensor]
    ) -> None:
        """Set the call's addresses, and all of it where the layout is another one."""
        k_PRKC, v_PRKC = rows["k"], rows["v"]
        call.k, call.v = k_PRKC.data_ptr(), v_PRKC.data_ptr()
        cache = self.given.cache
        layout = None if cache is None else cache.layout(layer.place.slot)
        assert layout is not None, "a paged pass without a layout"
        if layout is self.layouts[which]:
            return
        self.layouts[which] = layout
        call.offsets, call.starts, call.lengths, call.table, call.order = pointers(layout)
        (call.k_page, call.k_row, call.k_head, _) = k_PRKC.stride()
        (call.v_page, call.v_row, call.v_head, _) = v_PRKC.stride()
        (_, call.page_rows, call.key_heads, call.head_size) = k_PRKC.shape
        call.value_size, call.heads = v_PRKC.shape[3], layer.num_heads
        call.sequences, call.table_stride = len(layout.lengths_B), layout.table_BP.shape[1]
        self.set_rule(call, self.reaches[which], layer)

    def set_rule(self, call: PagedStruct, reach: Reach | None, layer: GroupedAttention) -> None:
        assert reach is not None, "a mask that the kernel does not know"
        call.is_causal, call.window = reach.is_causal, reach.window or 0
        call.scale, call.softcap = layer.scale, layer.config.softcap or 0.0
        call.threads = self.threads

    def make_room(self, size: LayerSize) -> None:
        """Memory between the parts, and as many threads as are worth it."""
        rows = self.rows
        if self.scratch.numel() < rows * size.room:
            self.scratch = torch.empty(rows * size.room)
            self.struct.scratch = self.scratch.data_ptr()
        self.struct.threads = 1 if rows * size.work < LITTLE else self.threads


def row_of(heads: HeadsStruct) -> int:
    """Numbers of a token's queries, keys and values."""
    size: int = heads.heads * heads.head_size
    size += heads.key_heads * (heads.head_size + heads.value_size)
    return size


def is_known(position: Position) -> bool:
    """Whether it turns pairs or does nothing inside a layer."""
    kind = type(position)
    is_turn = kind is Rotary and not position.turns_late
    return is_turn or (kind.rotate is Position.rotate and kind.bias is Position.bias)


def nothing() -> dict[str, Tensor]:
    raise AssertionError("the rows of a source are written before it is read")
