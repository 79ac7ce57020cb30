"""A mask and the sizes of a call -> the matrix of who sees whom, made once per mask object and
pass, not once per layer.

`Grid` holds the sizes. All layers of a pass share one mask object, so what is derived from it
(`remembered`) is kept on that object; the oldest entries leave, because a mask that lives as long
as its model meets a new grid at every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask

Made = TypeVar("Made")

KEPT = 4
"""Derived forms kept per mask object: those of one pass, not the history of a decoding run."""


@dataclass(frozen=True)
class Grid:
    """The queries and keys of one attention call: T queries from slot `start` on, S keys, in each
    of B rows."""

    B: int
    T: int
    S: int
    start: int | tuple[int, ...]
    """One number where all rows agree, else one for each row."""
    device: torch.device

    @staticmethod
    def of(q_BTHC: Tensor, view: KVView) -> Grid:
        start = view.start if isinstance(view.start, int) else agreed(view.start.tolist())
        return Grid(q_BTHC.shape[0], q_BTHC.shape[1], view.k_BSKC.shape[1], start, q_BTHC.device)

    @property
    def first_start(self) -> int:
        return self.start if isinstance(self.start, int) else min(self.start)

    @property
    def last_start(self) -> int:
        return self.start if isinstance(self.start, int) else max(self.start)

    @property
    def q_BT(self) -> Tensor:
        """Slot of each query; [1, T] where all rows start at the same slot."""
        start_B = torch.tensor(self.start, device=self.device).view(-1, 1)
        return start_B + torch.arange(self.T, device=self.device)

    @property
    def k_S(self) -> Tensor:
        return torch.arange(self.S, device=self.device)

    @property
    def pairs(self) -> int:
        return self.B * self.T * self.S


def agreed(starts: list[int]) -> int | tuple[int, ...]:
    """One number where all are equal, else all of them."""
    return starts[0] if len(set(starts)) == 1 else tuple(starts)


class Dense:
    """The matrix of a mask in the forms that kernels want."""

    def __init__(self, answer: Tensor, grid: Grid) -> None:
        self.answer, self.grid = answer, grid
        """What `allows` gave: [B or 1, T or 1, S or 1], so that a mask without queries stays
        small."""
        self.additive: dict[torch.dtype, Tensor] = {}

    @property
    def allowed_BTS(self) -> Tensor:
        """Whether query t of row b sees key s; B is 1 where all rows agree."""
        return self.answer.expand(-1, self.grid.T, self.grid.S)

    @cached_property
    def is_full(self) -> bool:
        return bool(self.answer.all())

    @cached_property
    def empty_BT(self) -> Tensor | None:
        """Queries that see nothing; None when there are none."""
        empty_BT = ~self.answer.any(dim=-1).expand(-1, self.grid.T)
        return empty_BT if bool(empty_BT.any()) else None

    def added_B1TS(self, dtype: torch.dtype) -> Tensor:
        """0 where allowed, -inf elsewhere: what is added to the scores of every head."""
        if dtype not in self.additive:
            added = additive(self.answer, dtype).expand(-1, self.grid.T, self.grid.S)
            self.additive[dtype] = added[:, None]
        return self.additive[dtype]


def dense(mask: Mask, grid: Grid) -> Dense:
    """The mask as a matrix, remembered on the mask object."""
    return remembered(mask, ("dense", grid), lambda: Dense(answer(mask, grid), grid))


def answer(mask: Mask, grid: Grid) -> Tensor:
    """`mask.allows` for all pairs of the grid, before broadcasting."""
    b = torch.arange(grid.B, device=grid.device)[:, None, None]
    return mask.allows(b, grid.q_BT[:, :, None], grid.k_S[None, None])


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where True, -inf where False."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, -torch.inf
    )


def remembered(mask: Mask, key: object, make: Callable[[], Made]) -> Made:
    """`make()`, called once for each key of this mask object."""
    memo: dict[object, Any] = mask.__dict__.setdefault("_remembered", {})
    if key not in memo:
        while len(memo) >= KEPT:
            del memo[next(iter(memo))]
        memo[key] = make()
    return cast(Made, memo[key])
