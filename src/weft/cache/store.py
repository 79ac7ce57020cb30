"""The tensors behind page numbers: rows of new tokens enter, and lie in pages that layers read.

    stripe 0   layers 0 1     page 7 of place 0: R rows of layer 0 (or 2), of place 1: of layer 1
    stripe 1   layers 2 3     a page belongs to one stripe at a time

Layers that keep alike form stripes of equal size, so that one number of a page serves any stripe
and one pool all of a model's rows. `PageStore` lives as long as the model; a `PagedPass` is its
handle for one packed pass. Differs from vLLM, whose groups hold layers of one kind each: here the
rows of cross-attention take pages from the same pool.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from weft.core.kv import KVSpec, PageLayout, Rows


class PageStore:
    """Storage [P, R, *row shape] for each place of a stripe and each name of a row."""

    def __init__(
        self,
        specs: Sequence[KVSpec],
        places: Sequence[tuple[int, int]],
        num_pages: int,
        page_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`places`: stripe and place in it of each layer, in the order of the specs."""
        shapes = {tuple(sorted(spec.rows.items())) for spec in specs}
        assert len(shapes) == 1, f"layers of one pool store {len(shapes)} kinds of rows, not one"
        self.places, self.num_pages, self.page_size = list(places), num_pages, page_size
        self.num_stripes = 1 + max(stripe for stripe, _ in places)
        self.device, self.dtype = torch.device(device), dtype
        self.rows: list[Rows] = [
            {
                name: lazy_zeros((num_pages, page_size, *shape), device, dtype)
                for name, shape in specs[0].rows.items()
            }
            for _ in range(1 + max(place for _, place in places))
        ]

    def reserve(self) -> None:
        """Have the system give all memory now, by writing the zeros that are there."""
        for rows in self.rows:
            for stored in rows.values():
                stored.zero_()

    def of_layer(self, layer: int) -> Rows:
        return self.rows[self.places[layer][1]]

    def write(self, layer: int, rows: Rows, slots_N: Tensor) -> None:
        """Put packed rows [1, N, ...] into flat slots (page * R + row of the page)."""
        for name, stored in self.of_layer(layer).items():
            stored.view(-1, *stored.shape[2:]).index_copy_(0, slots_N, rows[name][0])

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Whole pages, in every place: a fork is about to write into a page that it shares."""
        # as rows of whole pages: three times as fast as a list of indices
        source_N, target_N = torch.tensor([source, target], device=self.device)
        for rows in self.rows:
            for stored in rows.values():
                pages = stored.flatten(1)
                pages.index_copy_(0, target_N, pages.index_select(0, source_N))

    def pages(self, numbers: Sequence[int]) -> list[dict[str, Tensor]]:
        """The content of some pages, to be saved: for each place, by name."""
        return [{name: t[list(numbers)] for name, t in rows.items()} for rows in self.rows]

    def restore(self, numbers: Sequence[int], saved: Sequence[Mapping[str, Tensor]]) -> None:
        for rows, content in zip(self.rows, saved, strict=True):
            for name, stored in rows.items():
                stored[list(numbers)] = content[name].to(stored)

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for rows in self.rows for t in rows.values())


class PagedPass:
    """A KVCache for one packed pass: layouts and slots were made for it, one a stripe."""

    start: int = 0

    def __init__(
        self, store: PageStore, layouts: Mapping[int, PageLayout], slots: Mapping[int, Tensor]
    ) -> None:
        self.store, self.layouts, self.slots = store, layouts, slots

    @property
    def storage(self) -> PageStore:
        """Its pages lie where they lie as long as this is there."""
        return self.store

    def extend(self, layer: int, rows: Rows) -> Rows:
        stored, slots_N = self.target(layer)
        self.store.write(layer, rows, slots_N)
        return stored

    def target(self, layer: int, spec: KVSpec | None = None) -> tuple[Rows, Tensor]:
        """Where a compiled layer puts its new rows itself: all pages, and slots_N in them."""
        return self.store.of_layer(layer), self.slots[self.store.places[layer][0]]

    def source(self, layer: int, make: Callable[[], Rows]) -> Rows:
        """Written when the source was encoded; `make` is never needed."""
        return self.store.of_layer(layer)

    def layout(self, layer: int) -> PageLayout | None:
        return self.layouts[self.store.places[layer][0]]


class GatheredPass(PagedPass):
    """The same for one sequence, whose rows are copied out of their pages: for layers that cannot
    read pages, because the angle of a stored key still depends on the length."""

    def __init__(
        self,
        store: PageStore,
        layouts: Mapping[int, PageLayout],
        slots: Mapping[int, Tensor],
        start: int,
    ) -> None:
        super().__init__(store, layouts, slots)
        self.start = start

    def extend(self, layer: int, rows: Rows) -> Rows:
        super().extend(layer, rows)
        return self.gathered(layer)

    def source(self, layer: int, make: Callable[[], Rows]) -> Rows:
        return self.gathered(layer)

    def gathered(self, layer: int) -> Rows:
        """Rows of the sequence, [1, length, ...]."""
        layout = self.layouts[self.store.places[layer][0]]
        return gathered(
            self.store.of_layer(layer), layout.table_BP[0].long(), int(layout.lengths_B[0])
        )

    def layout(self, layer: int) -> None:
        """Row 0 is the sequence."""


class ScratchPass:
    """A KVCache for an encoder's packed pass: nothing is kept, so all layers use the same rows."""

    start = 0
    storage = None

    def __init__(self, layout: PageLayout, slots_N: Tensor, page_size: int) -> None:
        self.shared, self.slots_N, self.page_size = layout, slots_N, page_size
        self.rows: Rows = {}

    def extend(self, layer: int, rows: Rows) -> Rows:
        if not self.rows:
            some = next(iter(rows.values()))
            self.make({name: row.shape[2:] for name, row in rows.items()}, some)
        for name, stored in self.rows.items():
            stored.view(-1, *stored.shape[2:]).index_copy_(0, self.slots_N, rows[name][0])
        return self.rows

    def target(self, layer: int, spec: KVSpec) -> tuple[Rows, Tensor]:
        """Where a compiled layer puts its rows itself."""
        if not self.rows:
            self.make(spec.rows, torch.empty(0, dtype=torch.float32, device="cpu"))
        return self.rows, self.slots_N

    def make(self, shapes: Mapping[str, Sequence[int]], like: Tensor) -> None:
        num_pages = int(self.shared.table_BP.max()) + 1
        self.rows = {
            name: like.new_zeros(num_pages, self.page_size, *shape)
            for name, shape in shapes.items()
        }

    def source(self, layer: int, make: Callable[[], Rows]) -> Rows:
        raise NotImplementedError("an encoder has no source")

    def layout(self, layer: int) -> PageLayout:
        return self.shared


def gathered(stored: Rows, pages_P: Tensor, length: int) -> Rows:
    """The rows of one sequence, copied out of its pages: [1, length, ...]."""
    return {name: rows[pages_P].flatten(0, 1)[None, :length] for name, rows in stored.items()}


def lazy_zeros(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Zeros (a masked key's weight is 0, and 0 times NaN is NaN); on a CPU memory is taken only as
    pages are written, which torch.zeros would do at once. np.zeros asks for huge pages, for which
    the system stops the writer for tens of milliseconds now and then: mapped memory does not."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape)
    content = np.frombuffer(mapped(max(1, size) * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(content).view(dtype)[:size].view(shape)


def mapped(num_bytes: int) -> mmap.mmap:
    """Zeros of this process alone: a child that is forked off has its own copy."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, num_bytes)
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes cannot be had") from error
