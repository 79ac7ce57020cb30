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

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.parts import Part, parts_of
from weft.nn.attention.kernels.rows import Rows
from weft.nn.attention.kernels.tiles import Tiles
from weft.nn.attention.masks.dense import Grid, additive, remembered

ROWS = 2**14
"""Keys that a call reads: bounds the memory of a call, whatever the length of the sequence."""
KEPT_PAIRS = 2**26
"""Pairs that a schedule remembers the answers of; beyond, they are asked again in every pass."""


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
    alike: object | None
    """Not None: all tiles of the call have the same answers, and so have other calls with an equal
    mark here."""

    @property
    def pairs(self) -> int:
        return self.q_rows.index_BT.numel() * self.k_rows.index_BT.shape[1]

    @property
    def answers(self) -> int:
        """Pairs that must be asked about one by one."""
        T, S = self.q_rows.index_BT.shape[1], self.k_rows.index_BT.shape[1]
        return 0 if self.is_sure else T * S if self.alike is not None else self.pairs

    def ask(self, mask: Mask, grid: Grid) -> Answer | None:
        """What the mask of the call's part says; None where everyone sees everyone."""
        if self.is_sure:
            return None
        tiles = slice(None) if self.alike is None else slice(1)
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
    known: dict[object, Answer | None] = {}
    for number, call in enumerate(calls):
        if call.alike is not None and call.alike in known:
            answers[number] = known[call.alike]
            continue
        kept += call.answers
        if kept <= KEPT_PAIRS:
            answers[number] = known[call.alike] = call.ask(parts[call.part].mask, grid)
    return Schedule(grid, calls, answers)


def parts_for(mask: Mask, grid: Grid) -> list[Part]:
    """The parts of a mask; one where rows start at different slots, since their classes of slots
    differ then."""
    return parts_of(mask) if isinstance(grid.start, int) else [Part(1, mask)]


def calls_of(number: int, part: Part, grid: Grid) -> list[Call]:
    """The calls of one part: tiles of queries that can run together, in pieces of bounded size."""
    tiles = Tiles(part, grid)
    calls: list[Call] = []
    for (likeness, is_sure), members in tiles.groups().items():
        size = max(1, ROWS // (len(members[0].keys) * tiles.tile))
        alike = (number, likeness, is_sure) if tiles.is_relative else None
        for piece in (members[i : i + size] for i in range(0, len(members), size)):
            calls.append(Call(*tiles.rows(piece), number, is_sure, alike))
    return calls


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
