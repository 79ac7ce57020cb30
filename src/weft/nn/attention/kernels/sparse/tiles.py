"""A mask and a grid -> tiles of queries, each with the tiles of keys it needs, and their rows.

1. `split_by_step`: a mask -> disjoint parts that together allow the same pairs. A part with step d
   allows only pairs at distances that are multiples of d. Its slots fall into d residue classes
   (slot % d) that do not interact, and within a class the pattern is an ordinary one: dilated
   attention becomes d short windows, strided attention a window and d short causal sequences.
2. `Tiles`: the slots of each class are cut into tiles of equal size. The mask's bounds exclude
   pairs of tiles without any allowed pair. Tiles of queries that can run in one call are grouped.
3. `StridedRows`: the rows of a tensor that the tiles of a call read and write, as a view where they
   are evenly spaced, else as an index.

       index_BT[b, t] = first + b * outer + t * inner        ->  no copy: only strides
         a window of 3 tiles over tiles of 128:  outer 128, inner 1, 384 rows each, overlapping
         one class of a dilated pattern:         inner is the step

Differs from Child 2019 and Beltagy 2020, which have one kernel for each pattern with a fixed block
size: here the mask algebra determines how to split, the last tile may extend beyond the end, and
most tiles of most patterns need no copy.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from torch import Tensor

from weft.nn.attention.base import Mask
from weft.nn.attention.masks.algebra import (
    And,
    Full,
    MaskBase,
    Or,
    conjuncts,
    depends_on_distance,
)
from weft.nn.attention.masks.dense import Grid
from weft.nn.attention.masks.kinds import Strided

TILE = 128
"""Queries and keys in a tile: smaller tiles waste less at the edges, larger ones run faster. 128 is
best for a window of 256."""


class MaskPart(NamedTuple):
    """Pairs q, k with (q - k) a multiple of `step` that `mask` allows."""

    step: int
    mask: Mask


def split_by_step(mask: Mask) -> list[MaskPart]:
    """Parts that cover the mask, each pair in exactly one of them."""
    if not isinstance(mask, MaskBase):
        return [MaskPart(1, mask)]
    terms = sorted(disjuncts(mask), key=lambda term: step_of(term) > 1)
    if all(step_of(term) == 1 for term in terms):
        return [MaskPart(1, mask)]
    dense_terms = [term for term in terms if step_of(term) == 1]
    disjoint = [reduce(lambda a, b: a | b, dense_terms)] if dense_terms else []
    for term in terms[len(dense_terms) :]:
        disjoint.append(reduce(and_, [term, *[~other for other in disjoint]]))
    return [MaskPart(step_of(term), without_step(term)) for term in disjoint]


def disjuncts(mask: MaskBase) -> list[MaskBase]:
    """Masks whose union is this one. `(a | b) & c` is split into `a & c` and `b & c` if a or b is
    strided."""
    if isinstance(mask, Or):
        return [term for inner in mask.masks for term in disjuncts(inner)]
    if not isinstance(mask, And):
        return [mask]
    for i, inner in enumerate(mask.masks):
        if isinstance(inner, Or) and any(step_of(term) > 1 for term in inner.masks):
            rest = mask.masks[:i] + mask.masks[i + 1 :]
            return [
                term for choice in inner.masks for term in disjuncts(reduce(and_, rest, choice))
            ]
    return [mask]


def step_of(mask: MaskBase) -> int:
    """d if the mask is a conjunction with Strided(d), otherwise 1."""
    steps = [inner.step for inner in conjuncts(mask) if isinstance(inner, Strided)]
    return max(steps, default=1)


def without_step(mask: MaskBase) -> MaskBase:
    """The mask without the `Strided` of `step_of`, which always holds inside a residue class."""
    step = step_of(mask)
    rest = [m for m in conjuncts(mask) if not (isinstance(m, Strided) and m.step == step)]
    return reduce(and_, rest) if rest else Full()


@dataclass(frozen=True)
class QueryTile:
    """A tile of queries and the tiles of keys that it needs."""

    b: int
    index: int
    keys: list[int]


class Tiles:
    """The tiles of one part: the slots of a residue class, `tile` at a time. Tables are [classes,
    tiles, tile]; entries beyond the end of the sequence are padding."""

    def __init__(self, part: MaskPart, grid: Grid) -> None:
        self.part, self.grid = part, grid
        class_size = -(-max(grid.T, grid.S) // part.step)
        self.tile = min(TILE, max(8, 1 << (class_size - 1).bit_length()))
        # a mask by distance, with one start for all rows, has equal tiles at equal distances
        self.by_distance = depends_on_distance(part.mask) and isinstance(grid.start, int)
        self.t = self.table((-grid.first_start) % part.step, grid.T)
        self.s = self.table(0, grid.S)
        self.t_ends = self.t.flatten(0, 1)[:, [0, -1]].tolist()
        self.s_ends = self.s[:, :, [0, -1]].tolist()

    def table(self, shift: int, size: int) -> Tensor:
        """Indices of each class in order; those from `size` on are padding."""
        step, tile = self.part.step, self.tile
        first = (torch.arange(step, device=self.grid.device) + shift) % step
        count = -(-size // (step * tile)) * tile
        index = first[:, None] + step * torch.arange(count, device=self.grid.device)
        return index.view(step, -1, tile)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(nonempty, full) for each tile of queries and tile of keys: [B or 1, classes, tiles,
        tiles]."""
        grid, t, s = self.grid, self.t[:, :, None], self.s[:, None]
        t_lo, t_hi = t[..., 0], t[..., -1].clamp(max=grid.T - 1)
        s_lo, s_hi = s[..., 0], s[..., -1].clamp(max=grid.S - 1)
        q_lo = t_lo.clamp(max=grid.T - 1) + grid.first_start
        nonempty, full = self.part.mask.bounds(
            q_lo, t_hi + grid.last_start, s_lo.clamp(max=grid.S - 1), s_hi
        )
        is_inside = (t_lo < grid.T) & (s_lo < grid.S)
        return nonempty & is_inside, full & (s[..., -1] < grid.S)

    def groups(self) -> dict[tuple[object, bool], list[QueryTile]]:
        """Tiles of queries that can share a call, by their similarity and whether every pair is
        allowed."""
        nonempty, full = self.bounds()
        nonempty, full = (x.expand(self.grid.B, -1, -1, -1).flatten(0, 2) for x in (nonempty, full))
        counts = nonempty.sum(dim=1).tolist()
        is_full = (full | ~nonempty).all(dim=1).tolist()
        groups: dict[tuple[object, bool], list[QueryTile]] = defaultdict(list)
        for i, keys in enumerate(nonempty.nonzero()[:, 1].split(counts)):
            if counts[i]:
                tile = QueryTile(*divmod(i, len(self.t_ends)), keys.tolist())
                groups[self.similarity(tile), is_full[i]].append(tile)
        return groups

    def similarity(self, tile: QueryTile) -> object:
        """Equal for tiles that may share a call: the same number of keys and, for a mask by
        distance, the same matrix."""
        if not self.by_distance:
            return len(tile.keys)
        t_first, t_last = self.t_ends[tile.index]
        s_ends = self.s_ends[tile.index // self.t.shape[1]]
        offsets = tuple(s_ends[key][0] - t_first for key in tile.keys)
        t_padding = self.out_of_range(t_last, self.grid.T)
        s_padding = self.out_of_range(s_ends[tile.keys[-1]][1], self.grid.S)
        return offsets, t_padding, s_padding

    def out_of_range(self, last: int, size: int) -> int:
        """Number of padding entries in a tile whose last entry is `last`."""
        return max(0, -(-(last + 1 - size) // self.part.step))

    def rows(self, tiles: list[QueryTile]) -> tuple[StridedRows, StridedRows]:
        """(q_rows, k_rows) of a call that computes these tiles."""
        grid, device = self.grid, self.grid.device
        b = torch.tensor([tile.b for tile in tiles], device=device)[:, None]
        index = torch.tensor([tile.index for tile in tiles], device=device)
        keys = torch.tensor([tile.keys for tile in tiles], device=device)
        t = self.t.flatten(0, 1)[index]
        s = self.s[(index // self.t.shape[1])[:, None], keys].flatten(1)
        num_q, num_k = grid.B * grid.T, grid.B * grid.S
        q_rows = torch.where(t < grid.T, b * grid.T + t, num_q)
        k_rows = torch.where(s < grid.S, b * grid.S + s, num_k)
        return StridedRows(q_rows, num_q), StridedRows(k_rows, num_k)


class RowStride(NamedTuple):
    """Evenly spaced rows: first + b * outer + t * inner."""

    first: int
    outer: int
    inner: int


class StridedRows:
    """Rows index_BT of flattened tensors [rows, heads, ...]. Index `limit` is padding. Results have
    heads before tokens, as the fused kernel reads them."""

    def __init__(self, index_BT: Tensor, limit: int) -> None:
        self.index_BT, self.limit = index_BT, limit
        self.flat = index_BT.flatten()
        self.clamped = self.flat.clamp(max=limit - 1)
        self.stride = row_stride(index_BT, limit)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of x as [B, heads, T, ...]. Padding returns any row, or row `limit` of x where
        it has one."""
        if self.stride is not None:
            return self.view(x, self.stride).transpose(1, 2)
        index = self.flat if len(x) > self.limit else self.clamped
        return x.index_select(0, index).unflatten(0, self.index_BT.shape).transpose(1, 2)

    def scatter(self, x: Tensor, values_BHT: Tensor) -> None:
        """Write values [B, heads, T, ...] into the rows of x, which has an unused row `limit`."""
        if self.stride is not None:
            self.view(x, self.stride).copy_(values_BHT.transpose(1, 2))
        else:
            x.index_copy_(0, self.flat, values_BHT.transpose(1, 2).flatten(0, 1))

    def scatter_add(self, x: Tensor, values_BHT: Tensor) -> None:
        """Add values [B, heads, T, ...] to the rows of x; a row may occur more than once."""
        values = values_BHT.transpose(1, 2)
        if self.stride is None:
            index = self.flat if len(x) > self.limit else self.clamped
            x.index_add_(0, index, values.flatten(0, 1))
            return
        view = self.view(x, self.stride)
        # pieces as long as the distance between tiles: no row occurs twice in a piece
        size = self.stride.outer // self.stride.inner
        for piece, more in zip(view.split(size, dim=1), values.split(size, dim=1), strict=True):
            piece += more

    def view(self, x: Tensor, stride: RowStride) -> Tensor:
        first, outer, inner = stride
        row, *rest = x.stride()
        return x.as_strided(
            (*self.index_BT.shape, *x.shape[1:]),
            (outer * row, inner * row, *rest),
            x.storage_offset() + first * row,
        )


def row_stride(index_BT: Tensor, limit: int) -> RowStride | None:
    """The spacing of the rows if it is even, without padding, and tiles are a whole number of steps
    apart."""
    B, T = index_BT.shape
    first = int(index_BT[0, 0])
    inner = int(index_BT[0, 1]) - first if T > 1 else 1
    outer = int(index_BT[1, 0]) - first if B > 1 else T * inner
    if inner < 1 or outer < inner or outer % inner:
        return None
    b, t = (torch.arange(n, device=index_BT.device) for n in (B, T))
    is_even = bool((index_BT == first + b[:, None] * outer + t * inner).all())
    return RowStride(first, outer, inner) if is_even and int(index_BT[-1, -1]) < limit else None
