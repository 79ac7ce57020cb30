"""The input of a forward pass: chunks of many sequences -> packed tokens and page tables.

    chunk a   slots 5 6 7      ids  a5 a6 a7 | b0 b1 | c9      one row, no padding
    chunk b   slots 0 1        offsets  0        3       5   6
    chunk c   slot  9

`PackedTokens` has the tokens and their positions, `InputBatch` adds the page tables of all
sequences. In a multi-step plan the batch of the next step consists of the sequences that continue,
one token further (`advance`); their pages were allocated with the plan. Everything is computed by a
few numpy calls, whatever the number of sequences: with one token per sequence, a Python loop takes
longer than the arithmetic of a small model.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore, PagedKVCache
from weft.core.kv_spec import PageLayout
from weft.engine.scheduling.plan import Chunk

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class PackedTokens:
    """The new tokens of B sequences in one row."""

    ids_1N: Tensor
    positions_1N: Tensor
    offsets: Int32Array
    """[B + 1]: the tokens of sequence b are offsets[b] to offsets[b + 1]."""
    starts: Int32Array
    """Position of the first new token of each sequence."""
    ends: Int32Array
    """Position after its last one."""

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> PackedTokens:
        """Any number of tokens per sequence."""
        counts = np.fromiter(map(len, tokens), dtype=np.int32, count=len(tokens))
        offsets = np.zeros(len(tokens) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        begins = np.asarray(starts, dtype=np.int32)
        positions = np.arange(offsets[-1], dtype=np.int64)
        positions = positions + np.repeat(begins - offsets[:-1], counts)
        ids = np.fromiter((token for part in tokens for token in part), np.int64, int(offsets[-1]))
        ids_1N, positions_1N = torch.from_numpy(ids)[None], torch.from_numpy(positions)[None]
        return cls(ids_1N, positions_1N, offsets, begins, begins + counts)

    @classmethod
    def of_single_tokens(cls, ids_B: Int64Array, starts_B: Int32Array) -> PackedTokens:
        """One token per sequence."""
        offsets = np.arange(len(ids_B) + 1, dtype=np.int32)
        ids_1N = torch.from_numpy(ids_B.astype(np.int64))[None]
        positions_1N = torch.from_numpy(starts_B.astype(np.int64))[None]
        return cls(ids_1N, positions_1N, offsets, starts_B, starts_B + 1)

    def layout(self, table_BP: Int32Array, device: torch.device) -> PageLayout:
        """The keys of each sequence, for self-attention."""
        return page_layout(self.offsets, self.starts, self.ends, table_BP, device)

    def source_layout(
        self, table_BP: Int32Array, lengths_B: Int32Array, device: torch.device
    ) -> PageLayout:
        """The keys of each source, for cross-attention."""
        return page_layout(self.offsets, np.zeros_like(self.starts), lengths_B, table_BP, device)

    def slots(self, table_BP: Int32Array, page_size: int, device: torch.device) -> Tensor:
        """slots_N: where the row of each token is written, page * R + row within the page."""
        positions = self.positions_1N[0].numpy()
        sequence_N = np.arange(len(table_BP))
        if len(positions) > len(table_BP):
            sequence_N = np.repeat(sequence_N, np.diff(self.offsets))
        page_N = table_BP[sequence_N, positions // page_size].astype(np.int64)
        assert page_N.all(), "a new token has no page"
        return torch.from_numpy(page_N * page_size + positions % page_size).to(device)


class SampledTokens(NamedTuple):
    """The tokens that were chosen after a decode step of B sequences."""

    ids_B: Int64Array
    continues_B: BoolArray
    """Whether a sequence takes part in the next step."""
    forks_2N: Int64Array | None = None
    """Sequences that are replaced by a fork of another one: origin (row 0) and replaced sequence
    (row 1). No sequence is both."""


@dataclass(frozen=True)
class InputBatch:
    """Tokens and page tables of B sequences."""

    packed: PackedTokens
    tables: list[Int32Array]
    """table_BP of each KV cache group of self-attention."""
    source_tables: list[Int32Array]
    """The same for cross-attention."""
    source_lengths: Int32Array | None
    begins: Int32Array
    """The position at which each sequence began in the first step of the plan."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk], layout: KVCacheLayout) -> InputBatch:
        packed = pack_chunks(chunks)
        tables = [
            pad_page_tables([chunk.page_tables[group] for chunk in chunks])
            for group in range(len(layout.self_groups))
        ]
        if not layout.cross_groups:
            return cls(packed, tables, [], None, packed.starts)
        sources = [chunk.source for chunk in chunks if chunk.source is not None]
        assert len(sources) == len(chunks), "a sequence without the source that its model reads"
        source_tables = [
            pad_page_tables([source.page_tables[group] for source in sources])
            for group in range(len(layout.cross_groups))
        ]
        lengths = np.array([source.num_tokens for source in sources], dtype=np.int32)
        return cls(packed, tables, source_tables, lengths, packed.starts)

    def select(self, is_selected_B: BoolArray) -> InputBatch:
        """Some of the sequences; all of them have one new token."""
        if is_selected_B.all():
            return self
        ids_B, starts_B = self.packed.ids_1N[0].numpy(), self.packed.starts
        lengths_B = self.source_lengths
        return InputBatch(
            PackedTokens.of_single_tokens(ids_B[is_selected_B], starts_B[is_selected_B]),
            [table_BP[is_selected_B] for table_BP in self.tables],
            [table_BP[is_selected_B] for table_BP in self.source_tables],
            None if lengths_B is None else lengths_B[is_selected_B],
            self.begins[is_selected_B],
        )

    def advance(self, sampled: SampledTokens) -> InputBatch:
        """The batch of the next decode step: the sequences that continue, with their new token."""
        packed = PackedTokens.of_single_tokens(sampled.ids_B, self.packed.ends)
        return replace(self, packed=packed).select(sampled.continues_B)

    def fork(self, forks_2N: Int64Array, page_size: int) -> Int64Array:
        """Replace sequences by forks of others. They share the pages before the one that the first
        step of the plan wrote into (the tables are changed in place); the rows from there on have
        to be copied. Returns these copies, one per row: source page, target page, number of
        rows."""
        origin_N, replaced_N = forks_2N
        ends_N, first_N = self.packed.ends[origin_N], self.begins[origin_N] // page_size
        last_N = (ends_N - 1) // page_size
        copies = []
        for table_BP in self.tables:
            for offset in range(int((last_N - first_N).max()) + 1):
                exists_N = first_N + offset <= last_N
                index_N = (first_N + offset)[exists_N]
                pages = (table_BP[sequences[exists_N], index_N] for sequences in forks_2N)
                rows_N = np.minimum(page_size, ends_N[exists_N] - index_N * page_size)
                copies.append(np.stack([*pages, rows_N], axis=1))
            if first_N.any():
                is_shared_NP = np.arange(table_BP.shape[1]) < first_N[:, None]
                shared_NP = np.where(is_shared_NP, table_BP[origin_N], table_BP[replaced_N])
                table_BP[replaced_N] = shared_NP
        return np.concatenate(copies)

    def paged_cache(self, store: KVStore, device: torch.device) -> PagedKVCache:
        """The KV cache of one forward pass: layouts and slots of all groups."""
        slots = {
            group: self.packed.slots(table_BP, store.page_size, device)
            for group, table_BP in enumerate(self.tables)
        }
        return PagedKVCache(store, self.layouts(device), slots)

    def layouts(self, device: torch.device) -> dict[int, PageLayout]:
        """Layouts by KV cache group: those of self-attention first, then of cross-attention."""
        self_layouts = [self.packed.layout(table_BP, device) for table_BP in self.tables]
        lengths_B = self.source_lengths
        if lengths_B is None:
            return dict(enumerate(self_layouts))
        cross_layouts = [
            self.packed.source_layout(table_BP, lengths_B, device)
            for table_BP in self.source_tables
        ]
        return dict(enumerate([*self_layouts, *cross_layouts]))


def pack_chunks(chunks: Sequence[Chunk]) -> PackedTokens:
    """The tokens of chunks; in half the time if each has one token, as in most steps."""
    starts = [chunk.start for chunk in chunks]
    tokens = [chunk.tokens for chunk in chunks]
    if any(len(part) > 1 for part in tokens):
        return PackedTokens.of(tokens, starts)
    ids = np.array([part[0] for part in tokens], dtype=np.int64)
    return PackedTokens.of_single_tokens(ids, np.array(starts, dtype=np.int32))


def page_layout(
    offsets: Int32Array,
    starts: Int32Array,
    ends: Int32Array,
    table_BP: Int32Array,
    device: torch.device,
) -> PageLayout:
    arrays = (offsets, starts, ends, table_BP)
    return PageLayout(*(torch.from_numpy(one).to(device) for one in arrays))


def pad_page_tables(tables: Sequence[array[int]]) -> Int32Array:
    """Page tables of different lengths as one matrix table_BP, padded with 0."""
    if len(tables) == 1 and tables[0]:
        return np.array(tables[0], dtype=np.int32)[None]
    lengths_B = np.fromiter(map(len, tables), dtype=np.int64, count=len(tables))
    table_BP = np.zeros((len(tables), lengths_B.max(initial=1)), dtype=np.int32)
    is_page_BP = np.arange(table_BP.shape[1]) < lengths_B[:, None]
    table_BP[is_page_BP] = np.frombuffer(b"".join(tables), dtype=np.int32)
    return table_BP


def consecutive_tables(lengths: Sequence[int], page_size: int) -> list[array[int]]:
    """Page tables for temporary rows: each sequence gets the next pages, starting with page 1."""
    tables, first = [], 1
    for length in lengths:
        end = first - (-length // page_size)
        tables.append(array("i", range(first, end)))
        first = end
    return tables
