"""A mask and a grid -> the batched calls that compute the nonempty tiles, once per mask and grid.

    tiles of queries    keys that some query of the tile may attend to, gathered next to each other
      [ 0..127]         [0..127]
      [128..255]        [0..127][128..255]        one `KernelCall` for all tiles with as many keys
      [256..383]        [128..255][256..383]

The mask's bounds determine which tiles of keys a tile of queries needs, and whether its pairs must
be evaluated one by one. Differs from block-sparse kernels (Child 2019, FlexAttention): the key
tiles of one query tile become neighbors in a view or a gathered copy, so the ordinary dense kernel
runs on them. In a `KernelCall`, B is the number of query tiles, T the queries of one and S the keys
it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.sparse.tiles import MaskPart, StridedRows, Tiles, split_by_step
from weft.nn.attention.masks.dense import Grid, additive, cached_on_mask

MAX_ROWS = 2**14
"""Keys that a call reads: bounds the memory of a call, whatever the length of the sequence."""
MAX_CACHED_PAIRS = 2**26
"""Pairs whose masks a schedule keeps; those of further calls are computed again in every pass."""


class TileMask:
    """The allowed pairs of a call's queries and keys; B is 1 if all its tiles are equal."""

    def __init__(self, allowed_BTS: Tensor) -> None:
        self.allowed_BTS = allowed_BTS
        empty_BT = ~allowed_BTS.any(dim=-1)
        self.empty_BT = empty_BT if bool(empty_BT.any()) else None
        """Queries without any allowed key in this call; None if there are none."""
        self.cached: dict[torch.dtype, Tensor] = {}

    def additive(self, dtype: torch.dtype) -> Tensor:
        """0 where allowed, -inf elsewhere: [B or 1, 1, T, S]. Cached if one serves all tiles."""
        if dtype in self.cached:
            return self.cached[dtype]
        added = additive(self.allowed_BTS, dtype)[:, None]
        if len(added) == 1:
            self.cached[dtype] = added
        return added


@dataclass(frozen=True)
class KernelCall:
    """One batched call of the fused kernel."""

    q_rows: StridedRows
    """Rows of the flattened queries [B * T]."""
    k_rows: StridedRows
    """Rows of the flattened keys [B * S]."""
    part: int
    """Index of the mask's part. A query occurs once in a part; parts are merged by their lse."""
    is_full: bool
    """True: every pair is allowed."""
    mask_key: object | None
    """Not None: all tiles of the call have the same mask, and so have other calls with an equal
    key."""

    @property
    def pairs(self) -> int:
        return self.q_rows.index_BT.numel() * self.k_rows.index_BT.shape[1]

    @property
    def mask_pairs(self) -> int:
        """Pairs that must be evaluated one by one."""
        T, S = self.q_rows.index_BT.shape[1], self.k_rows.index_BT.shape[1]
        return 0 if self.is_full else T * S if self.mask_key is not None else self.pairs

    def mask(self, mask: Mask, grid: Grid) -> TileMask | None:
        """Evaluate the mask of the call's part; None if every pair is allowed."""
        if self.is_full:
            return None
        tiles = slice(None) if self.mask_key is None else slice(1)
        b, t, _ = unflatten_rows(self.q_rows.index_BT[tiles, :, None], grid.T, grid)
        _, k, is_key = unflatten_rows(self.k_rows.index_BT[tiles, None, :], grid.S, grid)
        return TileMask(mask.allows(b, t + starts(grid, b), k) & is_key)


@dataclass(frozen=True)
class SparseSchedule:
    """All calls of one attention. Does not hold the mask: masks cache their schedules, and a
    reference cycle would keep both alive."""

    grid: Grid
    calls: list[KernelCall]
    masks: dict[int, TileMask | None]
    """Masks of the first calls, by the index of the call."""

    @property
    def density(self) -> float:
        """Share of all pairs that are computed."""
        return sum(call.pairs for call in self.calls) / self.grid.pairs

    def tile_mask(self, index: int, mask: Mask) -> TileMask | None:
        """The mask of a call, cached or computed again."""
        if index in self.masks:
            return self.masks[index]
        call = self.calls[index]
        return call.mask(parts_for(mask, self.grid)[call.part].mask, self.grid)


def schedule_of(mask: Mask, grid: Grid) -> SparseSchedule:
    """The schedule, cached on the mask object."""
    return cached_on_mask(mask, ("schedule", grid), lambda: make_schedule(mask, grid))


def make_schedule(mask: Mask, grid: Grid) -> SparseSchedule:
    parts = parts_for(mask, grid)
    calls = [call for index, part in enumerate(parts) for call in calls_of(index, part, grid)]
    num_cached, masks = 0, {}
    by_key: dict[object, TileMask | None] = {}
    for index, call in enumerate(calls):
        if call.mask_key is not None and call.mask_key in by_key:
            masks[index] = by_key[call.mask_key]
            continue
        num_cached += call.mask_pairs
        if num_cached <= MAX_CACHED_PAIRS:
            masks[index] = by_key[call.mask_key] = call.mask(parts[call.part].mask, grid)
    return SparseSchedule(grid, calls, masks)


def parts_for(mask: Mask, grid: Grid) -> list[MaskPart]:
    """The parts of a mask; one if rows start at different slots, because their residue classes then
    differ."""
    return split_by_step(mask) if isinstance(grid.start, int) else [MaskPart(1, mask)]


def calls_of(index: int, part: MaskPart, grid: Grid) -> list[KernelCall]:
    """The calls of one part: tiles of queries that can run together, at most MAX_ROWS keys each."""
    tiles = Tiles(part, grid)
    calls: list[KernelCall] = []
    for (similarity, is_full), members in tiles.groups().items():
        size = max(1, MAX_ROWS // (len(members[0].keys) * tiles.tile))
        mask_key = (index, similarity, is_full) if tiles.by_distance else None
        for piece in (members[i : i + size] for i in range(0, len(members), size)):
            calls.append(KernelCall(*tiles.rows(piece), index, is_full, mask_key))
    return calls


def unflatten_rows(rows: Tensor, length: int, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """(row of the batch, index in it, whether it is no padding) of flattened rows."""
    is_inside = rows < grid.B * length
    rows = rows.clamp(max=grid.B * length - 1)
    return rows // length, rows % length, is_inside


def starts(grid: Grid, b: Tensor) -> Tensor | int:
    """Slot of the first query of each row of the batch."""
    return (
        grid.start if isinstance(grid.start, int) else torch.tensor(grid.start, device=b.device)[b]
    )
