"""One new token of each of many sequences -> the best tokens behind it,
by native/csrc/next.cpp; and the
sequences written on with them, pass after pass, by native/csrc/greedy.cpp.

A search asks for nothing else. Weights, masks and pages stay where they are from pass to pass, so
all of it is read once; a pass then changes a few addresses and makes one call. Differs from the way
through the modules in time alone: bits are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int64
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.forward_batch import ForwardBatch
from weft.models.stack import Stack
from weft.native.kernels import is_contiguous_float32
from weft.native.structs import (
    GreedyStruct,
    NextCallStruct,
    NextStruct,
    NormStruct,
    PagedStruct,
    ProductStruct,
    WordsStruct,
)
from weft.nn.compiled import Ready
from weft.nn.compiled_pass import threads_for
from weft.nn.embedding import Embedding
from weft.nn.head import Head
from weft.nn.hooks import is_looked_at
from weft.nn.norm import Norm
from weft.nn.packed_modules import PackedEmbedding, PackedHead
from weft.nn.positions.base import Position

CLOSE = 7 << 18
"""Bytes of keys and values that a core may hope to find close by again in its next pass."""
LIGHT = 16 << 20
"""Bytes of weights that are in the last cache anyway: reading them for few lanes costs little."""


class NextIds:
    """A decoder and its head, for the passes of one plan. Nobody may change them meanwhile."""

    def __init__(self, ready: Ready, struct: NextStruct, head: Head) -> None:
        self.ready, self.struct, self.vocab_size = ready, struct, len(head.weight)
        self.threads, self.passes = torch.get_num_threads(), ready.addresses()

    @classmethod
    def of(cls, stack: Stack, head: Head, batch: ForwardBatch) -> NextIds | None:
        """For passes with no more tokens than `batch` has, and none at a later position than its
        last. None where modules have to do some of it, or where somebody looks inside."""
        embedding, norm = stack.embedding, stack.norm
        if is_looked_at((stack, *embedding.modules(), stack.position, norm, *head.modules())):
            return None
        words = words_struct(embedding, stack.position, int(batch.positions_BT.max()) + 1)
        last = norm.struct() if isinstance(norm, Norm) else NormStruct()
        product = head_struct(head)
        if words is None or last is None or product is None or not stack.blocks:
            return None
        ready = stack.compiled.ready(stack.layers, stack.contexts(batch), batch.ids_BT.shape[1])
        if ready is None:
            return None
        layers = ctypes.addressof(ready.calls.structs), len(ready.read.layers)
        has_norm = last.weight is not None
        return cls(ready, NextStruct(words, *layers, last, has_norm, product, head.scale), head)

    def best(
        self, ids_N: Tensor, cache: Any, count: int, banned: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best logits of each row that are not banned, their ids, and the logarithm of the sum
        of all exps, behind a pass over the pages that `cache` knows of."""
        rows, count = len(ids_N), min(count, self.vocab_size)
        self.place(rows, cache)
        best_NK = torch.empty(rows, count, dtype=torch.float32, device="cpu")
        found_NK = torch.empty(rows, count, dtype=torch.long, device="cpu")
        sums_N = torch.empty(rows, dtype=torch.float64, device="cpu")
        never, done = (c_int64 * len(banned))(*banned), c_int64()
        call = self.call(never, count)
        call.ids, call.values = ids_N.data_ptr(), best_NK.data_ptr()
        call.found, call.sums = found_NK.data_ptr(), sums_N.data_ptr()
        library, struct = self.ready.library, ctypes.addressof(self.struct)
        library.next(struct, ctypes.addressof(call), byref(done))
        assert done.value == rows, f"token {ids_N[done.value]} has no row in the word table"
        return best_NK, found_NK, sums_N

    def write(self, lanes: GreedyStruct, cache: Any, banned: Sequence[int]) -> None:
        """Lanes go on with their best tokens until each has ended or come to its limit."""
        self.place(lanes.lanes, cache)
        never, done = (c_int64 * len(banned))(*banned), c_int64()
        lanes.call, lanes.group = self.call(never, 1), self.group(lanes.lanes, cache)
        library, struct = self.ready.library, ctypes.addressof(self.struct)
        library.greedy(struct, ctypes.addressof(lanes), byref(done))
        assert done.value == lanes.lanes, "a token has no row in the word table"

    @property
    def is_light(self) -> bool:
        """Whether `write` is worth it. A heavy model wants all lanes in each pass, and its passes
        are long: one that can be broken off behind each of them is better."""
        layers, width = self.ready.read.layers, self.struct.words.width
        numbers = len(layers) * self.ready.read.size.work + self.vocab_size * width
        return 4 * numbers <= LIGHT

    def group(self, lanes: int, cache: Any) -> int:
        """Lanes that go at a time, so that their keys and values stay close by."""
        ready = self.ready
        layers, call = len(ready.read.layers), ready.given[0].own
        places = (one.slot.kv_index for one in ready.calls.groups[0] if one is not None)
        keys = sum(float(cache.layout(slot).lengths_B.float().mean()) for slot in places)
        row = 4 * layers * call.key_heads * (call.head_size + call.value_size)
        return min(lanes, self.threads * max(1, int(CLOSE / (keys * row))))

    def call(self, never: Any, count: int) -> NextCallStruct:
        """What all calls have in common."""
        passes = ctypes.addressof(self.passes), len(self.passes)
        banned = ctypes.addressof(never), len(never)
        return NextCallStruct(*passes, None, *banned, count, threads=self.threads)

    def place(self, rows: int, cache: Any) -> None:
        """Where the sequences of a pass have their keys."""
        ready = self.ready
        for given, (own, cross) in zip(ready.given, ready.calls.groups, strict=True):
            given.rows, given.threads = rows, threads_for(rows, ready.read.size, self.threads)
            point(given.own, cache.layout(own.slot.kv_index))
            if cross is not None:
                point(given.cross, cache.layout(cross.slot.kv_index))


def point(call: PagedStruct, layout: Any) -> None:
    """Let a call of attention read a layout; in which order, the library finds out."""
    parts = (layout.offsets, layout.starts_B, layout.lengths_B, layout.table_BP)
    assert all(part.dtype == torch.int32 and part.is_contiguous() for part in parts), layout
    call.offsets, call.starts, call.lengths, call.table = (part.data_ptr() for part in parts)
    call.sequences, call.table_stride = layout.table_BP.shape


def words_struct(embedding: Embedding, position: Position, num_rows: int) -> WordsStruct | None:
    """The embedding for positions below `num_rows`; None where modules have to compute it."""
    words, is_added = embedding.words, type(position).add is not Position.add
    added_MD = position.position_rows(num_rows) if is_added else None
    if type(words) is not PackedEmbedding or embedding.segments is not None or embedding.training:
        return None
    if is_added and (added_MD is None or not is_contiguous_float32(added_MD)):
        return None
    table = words.matrices["weight"]
    norm = embedding.norm.struct() if isinstance(embedding.norm, Norm) else NormStruct()
    if norm is None or not table.is_native:
        return None
    added, has_norm = None if added_MD is None else added_MD.data_ptr(), norm.weight is not None
    return WordsStruct(table.address, added, norm, has_norm, table.inputs, embedding.scale)


def head_struct(head: Head) -> ProductStruct | None:
    """The head's product; None where there is more to compute than it and a scale."""
    if type(head) is not PackedHead or head.softcap is not None:
        return None
    matrix = head.matrices["weight"]
    if not matrix.is_native or type(head.transform) is not nn.Identity:
        return None
    return ProductStruct(matrix.address, None if head.bias is None else head.bias.data_ptr())
