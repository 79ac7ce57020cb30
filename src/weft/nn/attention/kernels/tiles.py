"""One part of a mask and a grid -> tiles of queries, each with the tiles of keys that it needs.

Slots of one class (slot % step, see parts.py) are cut into tiles of equal size. The mask's bounds
rule out the pairs of tiles that share no allowed pair. Tiles of queries that can run in one call
are grouped. Differs from a fixed block pattern (Child 2019): the last tile may reach beyond the
end, and its missing places stand for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.kernels.parts import Part
from weft.nn.attention.kernels.rows import Rows
from weft.nn.attention.masks.algebra import is_relative
from weft.nn.attention.masks.dense import Grid

TILE = 128
"""Queries and keys in a tile: smaller wastes less at the edges, larger runs faster. 128 is best for
a window of 256."""


@dataclass(frozen=True)
class QueryTile:
    """A tile of queries and the tiles of keys that it needs."""

    b: int
    index: int
    keys: list[int]


class Tiles:
    """The tiles of one part: slots of a class, `tile` at a time. Tables are [classes, tiles,
    tile]."""

    def __init__(self, part: Part, grid: Grid) -> None:
        self.part, self.grid = part, grid
        longest = -(-max(grid.T, grid.S) // part.step)
        self.tile = min(TILE, max(8, 1 << (longest - 1).bit_length()))
        # a mask of distances, in rows that start alike, repeats itself from tile to tile
        self.is_relative = is_relative(part.mask) and isinstance(grid.start, int)
        self.t = self.table((-grid.first_start) % part.step, grid.T)
        self.s = self.table(0, grid.S)
        self.t_ends = self.t.flatten(0, 1)[:, [0, -1]].tolist()
        self.s_ends = self.s[:, :, [0, -1]].tolist()

    def table(self, shift: int, size: int) -> Tensor:
        """Indices of each class in order; those from `size` on stand for nothing."""
        step, tile = self.part.step, self.tile
        first = (torch.arange(step, device=self.grid.device) + shift) % step
        count = -(-size // (step * tile)) * tile
        index = first[:, None] + step * torch.arange(count, device=self.grid.device)
        return index.view(step, -1, tile)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(maybe, surely) for each tile of queries and tile of keys: [B or 1, classes, tiles,
        tiles]."""
        grid, t, s = self.grid, self.t[:, :, None], self.s[:, None]
        t_lo, t_hi = t[..., 0], t[..., -1].clamp(max=grid.T - 1)
        s_lo, s_hi = s[..., 0], s[..., -1].clamp(max=grid.S - 1)
        q_lo = t_lo.clamp(max=grid.T - 1) + grid.first_start
        maybe, surely = self.part.mask.bounds(
            q_lo, t_hi + grid.last_start, s_lo.clamp(max=grid.S - 1), s_hi
        )
        is_there = (t_lo < grid.T) & (s_lo < grid.S)
        return maybe & is_there, surely & (s[..., -1] < grid.S)

    def groups(self) -> dict[tuple[object, bool], list[QueryTile]]:
        """Tiles of queries that can share a call, by their likeness and whether every pair is
        allowed."""
        maybe, surely = self.bounds()
        maybe, surely = (x.expand(self.grid.B, -1, -1, -1).flatten(0, 2) for x in (maybe, surely))
        counts = maybe.sum(dim=1).tolist()
        is_sure = (surely | ~maybe).all(dim=1).tolist()
        found: dict[tuple[object, bool], list[QueryTile]] = defaultdict(list)
        for i, keys in enumerate(maybe.nonzero()[:, 1].split(counts)):
            if counts[i]:
                tile = QueryTile(*divmod(i, len(self.t_ends)), keys.tolist())
                found[self.likeness(tile), is_sure[i]].append(tile)
        return found

    def likeness(self, tile: QueryTile) -> object:
        """Equal for tiles that may share a call: equally many keys; where the mask repeats, equal
        answers."""
        if not self.is_relative:
            return len(tile.keys)
        t_first, t_last = self.t_ends[tile.index]
        s_ends = self.s_ends[tile.index // self.t.shape[1]]
        offsets = tuple(s_ends[key][0] - t_first for key in tile.keys)
        beyond_t = self.beyond(t_last, self.grid.T)
        beyond_s = self.beyond(s_ends[tile.keys[-1]][1], self.grid.S)
        return offsets, beyond_t, beyond_s

    def beyond(self, last: int, size: int) -> int:
        """How many places of a tile that ends at `last` stand for nothing."""
        return max(0, -(-(last + 1 - size) // self.part.step))

    def rows(self, piece: list[QueryTile]) -> tuple[Rows, Rows]:
        """(q_rows, k_rows) of a call that runs these tiles."""
        grid, device = self.grid, self.grid.device
        b = torch.tensor([tile.b for tile in piece], device=device)[:, None]
        index = torch.tensor([tile.index for tile in piece], device=device)
        keys = torch.tensor([tile.keys for tile in piece], device=device)
        t = self.t.flatten(0, 1)[index]
        s = self.s[(index // self.t.shape[1])[:, None], keys].flatten(1)
        last_q, last_k = grid.B * grid.T, grid.B * grid.S
        q_rows = torch.where(t < grid.T, b * grid.T + t, last_q)
        k_rows = torch.where(s < grid.S, b * grid.S + s, last_k)
        return Rows(q_rows, last_q), Rows(k_rows, last_k)
