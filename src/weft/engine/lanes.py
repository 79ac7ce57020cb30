"""The sequences of a pass side by side: how far each is, and where its rows lie, as arrays.

Made from chunks, with a few numpy calls whatever their number. Where a plan is run for several
passes, the lanes of the next one are those that go on, a token further: their pages were taken
before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.cache.layout import Layout
from weft.cache.store import PagedPass, PageStore
from weft.core.kv import PageLayout
from weft.engine.pack import Packed, written_out
from weft.engine.schedule.plan import Chunk


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

    @classmethod
    def of(cls, chunks: Sequence[Chunk], layout: Layout) -> Lanes:
        packed = Packed.of([chunk.tokens for chunk in chunks], [chunk.start for chunk in chunks])
        stripes = range(len(layout.own))
        tables = [written_out([chunk.pages[stripe] for chunk in chunks]) for stripe in stripes]
        if not layout.cross:
            return cls(packed, tables, [], None)
        sources = [chunk.source for chunk in chunks if chunk.source is not None]
        assert len(sources) == len(chunks), "a sequence without the source that its model reads"
        of_sources = [
            written_out([source.pages[index] for source in sources])
            for index in range(len(layout.cross))
        ]
        lengths = np.array([source.num_tokens for source in sources], dtype=np.int32)
        return cls(packed, tables, of_sources, lengths)

    def next(self, ids_B: Any, goes_B: Any) -> Lanes:
        """One token further: the lanes that go on, each with the token that was chosen for it."""
        ends_B = self.packed.ends
        if goes_B.all():
            return replace(self, packed=Packed.of_ones(ids_B, ends_B))
        return Lanes(
            Packed.of_ones(ids_B[goes_B], ends_B[goes_B]),
            [table_BP[goes_B] for table_BP in self.tables],
            [table_BP[goes_B] for table_BP in self.source_tables],
            None if self.source_lengths is None else self.source_lengths[goes_B],
        )

    def paged(self, store: PageStore, device: torch.device) -> PagedPass:
        """Layouts and slots of all stripes, for this pass."""
        layouts: dict[int, PageLayout] = {}
        slots: dict[int, Tensor] = {}
        for stripe, table_BP in enumerate(self.tables):
            layouts[stripe] = self.packed.layout(table_BP, device)
            slots[stripe] = self.packed.slots(table_BP, store.page_size, device)
        for stripe, table_BP in enumerate(self.source_tables, len(self.tables)):
            layouts[stripe] = self.packed.source_layout(table_BP, self.source_lengths, device)
        return PagedPass(store, layouts, slots)
