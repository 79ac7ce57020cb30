"""The tensors behind page ids, and the KVCache handles through which one forward pass uses them.

    group 0   layers 0 1     page 7 at index 0: R rows of layer 0 (or 2), at index 1: of layer 1
    group 1   layers 2 3     a page belongs to one group at a time

Groups have equal numbers of layers, so a page id serves any group and one pool all rows of a model
(kv_groups.py). `KVStore` lives as long as the engine. Handles for one packed forward pass:

    PagedKVCache     reads and writes pages; attention kernels follow the page tables
    ScratchKVCache   an encoder's pass: rows of the current layer only, nothing is kept
    ReadOnlyKVCache  recomputes tokens of a stored sequence without changing its pages

Differs from vLLM, whose groups have one kind of layer each: rows of cross-attention take pages from
the same pool.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.cache.encoder_cache import EncodedSource
from weft.cache.page_tables import PageCopy, PageIds
from weft.core.kv_spec import KVRows, KVSpec, PageLayout
from weft.native.kernels import copy_rows

RESERVE_BYTES = 2 << 20
"""Assigned at a time, which takes about a millisecond."""


class KVStore:
    """Storage [P, R, *row shape] for each layer index of a group and each name of a row."""

    def __init__(
        self,
        specs: Sequence[KVSpec],
        layer_locations: Sequence[tuple[int, int]],
        num_pages: int,
        page_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`layer_locations`: group and index in it of each layer, in the order of the specs."""
        shapes = {tuple(sorted(spec.rows.items())) for spec in specs}
        assert len(shapes) == 1, f"layers of one pool store {len(shapes)} kinds of rows, not one"
        self.layer_locations = list(layer_locations)
        self.num_pages, self.page_size = num_pages, page_size
        self.num_groups = 1 + max(group for group, _ in layer_locations)
        self.device, self.dtype = torch.device(device), dtype
        self.rows: list[KVRows] = [
            {
                name: lazy_zeros((num_pages, page_size, *shape), device, dtype)
                for name, shape in specs[0].rows.items()
            }
            for _ in range(1 + max(index for _, index in layer_locations))
        ]

    def reserve(self) -> None:
        """Make the operating system assign all memory now."""
        for _ in self.reserve_units():
            pass

    def reserve_units(self) -> Generator[None, None, None]:
        """The same, RESERVE_BYTES at a time. The contents do not change, so that rows may be
        written between two units."""
        if self.device.type != "cpu":
            return
        for rows in self.rows:
            for stored in rows.values():
                contents = stored.view(-1).view(torch.uint8)
                for start in range(0, len(contents), RESERVE_BYTES):
                    contents[start : start + RESERVE_BYTES : mmap.PAGESIZE].bitwise_or_(0)
                    yield

    def group_of(self, layer: int) -> int:
        """The KV cache group of a layer."""
        return self.layer_locations[layer][0]

    def layer_rows(self, layer: int) -> KVRows:
        """The tensors that hold the rows of a layer: all pages, [P, R, *row shape]."""
        return self.rows[self.layer_locations[layer][1]]

    def write(self, layer: int, rows: KVRows, slots_N: Tensor) -> None:
        """Write packed rows [1, N, ...] into flat slots (page * R + row in the page)."""
        for name, stored in self.layer_rows(layer).items():
            stored.view(-1, *stored.shape[2:]).index_copy_(0, slots_N, rows[name][0])

    def copy_pages(self, copies: Sequence[PageCopy] | NDArray[np.int64]) -> None:
        """Copy the filled rows of pages at every layer index (copy-on-write), in this order: a page
        that was freed while the step was planned may be read by one copy and written by a later
        one, never the reverse. `copies` may be an array with the fields of PageCopy as columns."""
        copies_N3 = np.ascontiguousarray(copies, dtype=np.int64)
        for rows in self.rows:
            for pages in rows.values():
                copy_rows(pages, copies_N3)

    def read_pages(self, page_ids: Sequence[int]) -> list[dict[str, Tensor]]:
        """The contents of some pages, to be saved: for each layer index, by name."""
        return [{name: t[list(page_ids)] for name, t in rows.items()} for rows in self.rows]

    def write_pages(self, page_ids: Sequence[int], saved: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore what `read_pages` returned, into other pages."""
        for rows, contents in zip(self.rows, saved, strict=True):
            for name, stored in rows.items():
                stored[list(page_ids)] = contents[name].to(stored)

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for rows in self.rows for t in rows.values())


class PagedKVCache:
    """A KVCache for one packed pass, with the page layouts and slots of each group."""

    start: int = 0

    def __init__(
        self, store: KVStore, layouts: Mapping[int, PageLayout], slots: Mapping[int, Tensor]
    ) -> None:
        self.store, self.layouts, self.slots = store, layouts, slots

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        stored, slots_N = self.write_slots(layer)
        self.store.write(layer, rows, slots_N)
        return stored

    def write_slots(self, layer: int, spec: KVSpec | None = None) -> tuple[KVRows, Tensor]:
        """Where a compiled layer writes its new rows: all pages, and slots_N in them."""
        return self.store.layer_rows(layer), self.slots[self.store.group_of(layer)]

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        """Written when the source was encoded; `compute` is never called."""
        return self.store.layer_rows(layer)

    def layout(self, layer: int) -> PageLayout | None:
        return self.layouts[self.store.group_of(layer)]


class ScratchKVCache:
    """A KVCache for an encoder's packed pass: nothing is kept, so all layers share one buffer."""

    start = 0

    def __init__(self, layout: PageLayout, slots_N: Tensor, page_size: int) -> None:
        self.page_layout, self.slots_N, self.page_size = layout, slots_N, page_size
        self.rows: KVRows = {}

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        if not self.rows:
            first = next(iter(rows.values()))
            self.allocate({name: row.shape[2:] for name, row in rows.items()}, first)
        for name, stored in self.rows.items():
            stored.view(-1, *stored.shape[2:]).index_copy_(0, self.slots_N, rows[name][0])
        return self.rows

    def write_slots(self, layer: int, spec: KVSpec) -> tuple[KVRows, Tensor]:
        """Where a compiled layer writes its rows."""
        if not self.rows:
            self.allocate(spec.rows, torch.empty(0, dtype=torch.float32, device="cpu"))
        return self.rows, self.slots_N

    def allocate(self, shapes: Mapping[str, Sequence[int]], like: Tensor) -> None:
        num_pages = int(self.page_layout.table_BP.max()) + 1
        self.rows = {
            name: like.new_zeros(num_pages, self.page_size, *shape)
            for name, shape in shapes.items()
        }

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        raise NotImplementedError("an encoder has no source")

    def layout(self, layer: int) -> PageLayout:
        return self.page_layout


class ReadOnlyKVCache:
    """A KVCache over one stored sequence; row 0 is the sequence.

        pages         rows of tokens 0 .. start - 1     read, never written
        this object   rows of recomputed tokens         discarded with it

    With it, what a layer does at an earlier position can be inspected while pages, reference counts
    and running requests stay as they are.
    """

    def __init__(
        self,
        store: KVStore,
        block_pages: Sequence[PageIds],
        start: int,
        source: EncodedSource | None = None,
    ) -> None:
        """`block_pages`: pages of at least the first `start` tokens; null outside of a window."""
        self.store, self.block_pages, self.start = store, block_pages, start
        self.encoded_source = source
        self.recomputed: dict[int, KVRows] = {}
        """All rows so far of each layer that has recomputed a token."""

    def extend(self, layer: int, rows: KVRows) -> KVRows:
        before = self.recomputed.get(layer) or self.stored(layer, rows)
        all_rows = {name: torch.cat((before[name], rows[name]), dim=1) for name in rows}
        self.recomputed[layer] = all_rows
        return all_rows

    def stored(self, layer: int, like: KVRows) -> KVRows:
        """The rows of the first `start` tokens, from the pages."""
        if self.start == 0:
            return {name: row[:, :0] for name, row in like.items()}
        group = self.store.group_of(layer)
        pages = [page_ids[group] for page_ids in self.block_pages]
        return gather_rows(self.store.layer_rows(layer), self.on_device(pages), self.start)

    def source(self, layer: int, compute: Callable[[], KVRows]) -> KVRows:
        source = self.encoded_source
        assert source is not None, f"layer {layer} reads a source, and there is none"
        # groups of cross-attention are the last ones: a negative index from the end
        group = self.store.group_of(layer) - self.store.num_groups
        pages = self.on_device(source.page_tables[group])
        return gather_rows(self.store.layer_rows(layer), pages, source.num_tokens)

    def layout(self, layer: int) -> None:
        """Row 0 is the sequence."""

    def advance(self, num_tokens: int) -> None:
        """Called after a forward pass over `num_tokens` tokens."""
        self.start += num_tokens

    def on_device(self, pages: Sequence[int]) -> Tensor:
        return torch.tensor(list(pages), dtype=torch.long, device=self.store.device)


def gather_rows(stored: KVRows, pages_P: Tensor, length: int) -> KVRows:
    """The rows of one sequence, copied out of its pages: [1, length, ...]."""
    return {name: rows[pages_P].flatten(0, 1)[None, :length] for name, rows in stored.items()}


def lazy_zeros(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Zeros (a masked key's weight is 0, and 0 times NaN is NaN). On a CPU memory is assigned only
    as pages are written; torch.zeros would do so at once. np.zeros requests huge pages, for which
    the kernel occasionally stalls the writer for tens of milliseconds; mapped memory does not."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape)
    buffer = np.frombuffer(map_memory(max(1, size) * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(buffer).view(dtype)[:size].view(shape)


def map_memory(num_bytes: int) -> mmap.mmap:
    """Zeroed private memory: a forked child process has its own copy."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, num_bytes)
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes of memory are not available") from error
