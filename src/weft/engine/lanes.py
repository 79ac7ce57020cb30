"""The sequences of a pass side by side: how far each is, and where its rows lie, as arrays.

Made from chunks, with a few numpy calls whatever their number. Where a plan is run for several
passes, the lanes of the next one are those that go on, a token further: their pages were taken
before the first. A lane whose beam has died is taken over by a second child of another (`fork`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore, PagedKVCache
from weft.core.kv_spec import PageLayout
from weft.engine.pack import Packed, written_out
from weft.engine.scheduling.plan import Chunk


class Turn(NamedTuple):
    """What was chosen behind a pass of B lanes; all are numpy's arrays."""

    ids_B: Any
    goes_B: Any
    """Whether a lane takes part in the next pass."""
    forks_2N: Any | None = None
    """Lanes that are taken over: from which (row 0) to which (row 1). Nobody is both."""


@dataclass(frozen=True)
class Lanes:
    """B sequences; all arrays are numpy's."""

    packed: Packed
    """Their new tokens."""
    tables: list[Any]
    """table_BP of each stripe of self-attention."""
    source_tables: list[Any]
    """The same for cross-attention."""
    source_lengths: Any
    begins: Any
    """The slot at which each began in the first pass."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk], layout: KVCacheLayout) -> Lanes:
        packed = Packed.of([chunk.tokens for chunk in chunks], [chunk.start for chunk in chunks])
        groups = range(len(layout.self_groups))
        tables = [written_out([chunk.page_tables[group] for chunk in chunks]) for group in groups]
        if not layout.cross_groups:
            return cls(packed, tables, [], None, packed.starts)
        sources = [chunk.source for chunk in chunks if chunk.source is not None]
        assert len(sources) == len(chunks), "a sequence without the source that its model reads"
        of_sources = [
            written_out([source.page_tables[index] for source in sources])
            for index in range(len(layout.cross_groups))
        ]
        lengths = np.array([source.num_tokens for source in sources], dtype=np.int32)
        return cls(packed, tables, of_sources, lengths, packed.starts)

    def some(self, is_wanted_B: Any) -> Lanes:
        """Those that are wanted, of lanes with one new token each."""
        if is_wanted_B.all():
            return self
        ids_B, starts_B = self.packed.ids_1N[0].numpy(), self.packed.starts
        return Lanes(
            Packed.of_ones(ids_B[is_wanted_B], starts_B[is_wanted_B]),
            [table_BP[is_wanted_B] for table_BP in self.tables],
            [table_BP[is_wanted_B] for table_BP in self.source_tables],
            None if self.source_lengths is None else self.source_lengths[is_wanted_B],
            self.begins[is_wanted_B],
        )

    def next(self, turn: Turn) -> Lanes:
        """One token further: the lanes that go on, each with the token that was chosen for it."""
        further = replace(self, packed=Packed.of_ones(turn.ids_B, self.packed.ends))
        return further.some(turn.goes_B)

    def fork(self, forks_2N: Any, page_size: int) -> Any:
        """Lanes are taken over: from here on they share the pages in front of the one that the
        first pass wrote into, which is changed in place; what lies from there on is to be copied
        into their own. Returns these copies as (page, page, rows), one a row."""
        origin_N, lane_N = forks_2N
        ends_N, first_N = self.packed.ends[origin_N], self.begins[origin_N] // page_size
        last_N = (ends_N - 1) // page_size
        copies = []
        for table_BP in self.tables:
            for further in range(int((last_N - first_N).max()) + 1):
                is_there = first_N + further <= last_N
                block_N = (first_N + further)[is_there]
                pages = (table_BP[lanes[is_there], block_N] for lanes in forks_2N)
                rows_N = np.minimum(page_size, ends_N[is_there] - block_N * page_size)
                copies.append(np.stack([*pages, rows_N], axis=1))
            if first_N.any():
                is_front_NP = np.arange(table_BP.shape[1]) < first_N[:, None]
                table_BP[lane_N] = np.where(is_front_NP, table_BP[origin_N], table_BP[lane_N])
        return np.concatenate(copies)

    def paged(self, store: KVStore, device: torch.device) -> PagedKVCache:
        """Layouts and slots of all stripes, for this pass."""
        slots = {
            group: self.packed.slots(table_BP, store.page_size, device)
            for group, table_BP in enumerate(self.tables)
        }
        return PagedKVCache(store, self.layouts(device), slots)

    def layouts(self, device: torch.device) -> dict[int, PageLayout]:
        """Where the keys of all stripes lie."""
        own = [self.packed.layout(table_BP, device) for table_BP in self.tables]
        cross = [
            self.packed.source_layout(table_BP, self.source_lengths, device)
            for table_BP in self.source_tables
        ]
        return dict(enumerate([*own, *cross]))
