"""A sequence read again: pages of its first tokens, and a few tokens run once more -> their rows.

    pages      rows of tokens 0 .. start - 1     read, never written
    in here    rows of the tokens run again      gone with this object

So that somebody can look at what a layer does at a position that was computed long ago, while the
pages, their counts and everybody who reads them stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.cache.sources import Source
from weft.cache.store import PageStore, gathered
from weft.cache.tables import Column
from weft.core.kv import Rows


class ReadPass:
    """A KVCache over one sequence that leaves its pages alone. Row 0 is the sequence."""

    def __init__(
        self, store: PageStore, columns: Sequence[Column], start: int, source: Source | None = None
    ) -> None:
        """`columns`: the pages of at least the first `start` tokens; null where a window passed."""
        self.store, self.columns, self.start = store, columns, start
        self.read = source
        self.again: dict[int, Rows] = {}
        """All rows so far of each layer, once it has run a token again."""

    def extend(self, layer: int, rows: Rows) -> Rows:
        before = self.again.get(layer) or self.stored(layer, rows)
        self.again[layer] = {name: torch.cat((before[name], rows[name]), dim=1) for name in rows}
        return self.again[layer]

    def stored(self, layer: int, like: Rows) -> Rows:
        """What the pages hold of the first `start` tokens."""
        if self.start == 0:
            return {name: row[:, :0] for name, row in like.items()}
        stripe = self.store.places[layer][0]
        pages = [column[stripe] for column in self.columns]
        return gathered(self.store.of_layer(layer), self.on_device(pages), self.start)

    def source(self, layer: int, make: Callable[[], Rows]) -> Rows:
        assert self.read is not None, f"layer {layer} reads a source, and there is none"
        # stripes of cross-attention are the last ones: counted from behind
        stripe = self.store.places[layer][0] - self.store.num_stripes
        pages = self.on_device(self.read.pages[stripe])
        return gathered(self.store.of_layer(layer), pages, self.read.num_tokens)

    def layout(self, layer: int) -> None:
        """Row 0 is the sequence."""

    def advance(self, number: int) -> None:
        """After a pass over so many tokens."""
        self.start += number

    def on_device(self, pages: Sequence[int]) -> Tensor:
        return torch.tensor(list(pages), dtype=torch.long, device=self.store.device)
