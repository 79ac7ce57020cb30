"""A mask and a grid -> the batched calls that compute only tiles with work, once per mask and grid.

    tiles of queries    keys that some query of the tile may see, gathered side by side
      [ 0..127]         [0..127]
      [128..255]        [0..127][128..255]        one `Call` for all tiles with equally many keys
      [256..383]        [128..255][256..383]

The mask's bounds say which tiles of keys a tile of queries needs, and whether pairs must be looked
at one by one. Differs from block-sparse kernels (Child 2019, FlexAttention): key tiles of one query
tile become neighbours in a view or a gathered copy, so the ordinary dense kernel runs on them. In a
`Call`, B counts query tiles, T the queries of one and S the keys it reads.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.parts import Part, parts_of
from weft.nn.attention.kernels.rows import Rows
from weft.nn.attention.masks.algebra import is_relative
from weft.nn.attention.masks.dense import Grid, additive, remembered

TILE = 128
"""Queries and keys in a tile: smaller wastes less at the edges, larger runs faster. 128 is best for
a window of 256."""
ROWS = 2**14
"""Keys that a call reads: bounds the memory of a call, whatever the length of the sequence."""
KEPT_PAIRS = 2**26
"""Pairs that a schedule remembers the answers of; beyond, they are asked again in every call."""


class Answer:
    """Who sees whom among the queries and keys that a call reads; B is 1 if all its tiles agree."""

    def __init__(self, allowed_BTS: Tensor) -> None:
        self.allowed_BTS = allowed_BTS
        empty_BT = ~allowed_BTS.any(dim=-1)
        self.empty_BT = empty_BT if bool(empty_BT.any()) else None
        """Queries that see nothing here; None when there are none."""
        self.kept: dict[torch.dtype, Tensor] = {}

    def added(self, dtype: torch.dtype) -> Tensor:
        """0 where allowed, -inf elsewhere: [B or 1, 1, T, S]. Kept where one serves all tiles."""
        if dtype in self.kept:
            return self.kept[dtype]
        added = additive(self.allowed_BTS, dtype)[:, None]
        if len(added) == 1:
            self.kept[dtype] = added
        return added


@dataclass(frozen=True)
class Call:
    """One batched call of the fused kernel."""

    q_rows: Rows
    """Rows of the flattened queries [B * T]."""
    k_rows: Rows
    """Rows of the flattened keys [B * S]."""
    part: int
    """Which part of the mask. No query comes twice in a part; parts are merged by their lse."""
    is_sure: bool
    """True: every pair is allowed."""
    is_alike: bool
    """True: all tiles of the call have the same answers."""

    @property
    def pairs(self) -> int:
        return self.q_rows.index_BT.numel() * self.k_rows.index_BT.shape[1]

    @property
    def answers(self) -> int:
        """Pairs that must be asked about one by one."""
        return (
            0 if self.is_sure else self.pairs // (len(self.q_rows.index_BT) if self.is_alike else 1)
        )

    def ask(self, mask: Mask, grid: Grid) -> Answer | None:
        """What the mask of the call's part says; None where everyone sees everyone."""
        if self.is_sure:
            return None
        tiles = slice(1) if self.is_alike else slice(None)
        b, t, _ = places(self.q_rows.index_BT[tiles, :, None], grid.T, grid)
        _, k, is_real = places(self.k_rows.index_BT[tiles, None, :], grid.S, grid)
        return Answer(mask.allows(b, t + starts(grid, b), k) & is_real)


@dataclass(frozen=True)
class Schedule:
    """All calls of one attention. Holds no mask: masks remember their schedules, and a circle would
    outlive both."""

    grid: Grid
    calls: list[Call]
    answers: dict[int, Answer | None]
    """What the first calls were told, by the number of the call."""

    @property
    def density(self) -> float:
        """Pairs that are computed, as a share of all."""
        return sum(call.pairs for call in self.calls) / self.grid.pairs

    def answer(self, number: int, mask: Mask) -> Answer | None:
        """The answer of a call, from memory or asked again."""
        if number in self.answers:
            return self.answers[number]
        call = self.calls[number]
        return call.ask(parts_for(mask, self.grid)[call.part].mask, self.grid)


def schedule_of(mask: Mask, grid: Grid) -> Schedule:
    """The schedule, remembered on the mask object."""
    return remembered(mask, ("schedule", grid), lambda: make_schedule(mask, grid))


def make_schedule(mask: Mask, grid: Grid) -> Schedule:
    parts = parts_for(mask, grid)
    calls = [call for number, part in enumerate(parts) for call in calls_of(number, part, grid)]
    kept, answers = 0, {}
    for number, call in enumerate(calls):
        kept += call.answers
        if kept <= KEPT_PAIRS:
            answers[number] = call.ask(parts[call.part].mask, grid)
    return Schedule(grid, calls, answers)


def parts_for(mask: Mask, grid: Grid) -> list[Part]:
    """The parts of a mask; one where rows start at different slots, since their classes of slots
    differ then."""
    return parts_of(mask) if isinstance(grid.start, int) else [Part(1, mask)]


def calls_of(number: int, part: Part, grid: Grid) -> list[Call]:
    """The calls of one part: tiles of queries that can run together, in pieces of bounded size."""
    tiles = Tiles(part, grid)
    calls: list[Call] = []
    for (_, is_sure), members in tiles.groups().items():
        size = max(1, ROWS // (len(members[0].keys) * tiles.tile))
        for piece in (members[i : i + size] for i in range(0, len(members), size)):
            calls.append(Call(*tiles.rows(piece), number, is_sure, tiles.is_relative))
    return calls


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


def places(rows: Tensor, length: int, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """(row of the batch, index in it, whether it is real) of flattened rows."""
    is_real = rows < grid.B * length
    rows = rows.clamp(max=grid.B * length - 1)
    return rows // length, rows % length, is_real


def starts(grid: Grid, b: Tensor) -> Tensor | int:
    """Slot of the first query of each row of the batch."""
    return (
        grid.start if isinstance(grid.start, int) else torch.tensor(grid.start, device=b.device)[b]
    )
