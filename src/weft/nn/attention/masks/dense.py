"""A mask and the sizes of a call -> the matrix of allowed pairs, computed once per mask object and
forward pass instead of once per layer.

`Grid` holds the sizes. All layers of a pass share one mask object, so values derived from it are
cached on that object (`cached_on_mask`). The oldest entries are dropped: a mask that lives as long
as its model is used with a new grid for every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask

Value = TypeVar("Value")

MAX_CACHED = 4
"""Derived values cached per mask object: those of one pass, not the history of a decoding run."""


@dataclass(frozen=True)
class Grid:
    """The queries and keys of one attention call: T queries from slot `start` on, S keys, in each
    of B rows."""

    B: int
    T: int
    S: int
    start: int | tuple[int, ...]
    """One number if it is the same for all rows, else one for each row."""
    device: torch.device

    @staticmethod
    def of(q_BTHC: Tensor, view: KVView) -> Grid:
        start = view.start if isinstance(view.start, int) else common_start(view.start.tolist())
        return Grid(q_BTHC.shape[0], q_BTHC.shape[1], view.k_BSKC.shape[1], start, q_BTHC.device)

    @property
    def first_start(self) -> int:
        return self.start if isinstance(self.start, int) else min(self.start)

    @property
    def last_start(self) -> int:
        return self.start if isinstance(self.start, int) else max(self.start)

    @property
    def q_BT(self) -> Tensor:
        """Slot of each query; [1, T] if all rows start at the same slot."""
        start_B = torch.tensor(self.start, device=self.device).view(-1, 1)
        return start_B + torch.arange(self.T, device=self.device)

    @property
    def k_S(self) -> Tensor:
        return torch.arange(self.S, device=self.device)

    @property
    def pairs(self) -> int:
        return self.B * self.T * self.S


def common_start(starts: list[int]) -> int | tuple[int, ...]:
    """One number if all are equal, else all of them."""
    return starts[0] if len(set(starts)) == 1 else tuple(starts)


class Dense:
    """The matrix of a mask in the forms that kernels read."""

    def __init__(self, allowed: Tensor, grid: Grid) -> None:
        self.allowed, self.grid = allowed, grid
        """Result of `Mask.allows`, [B or 1, T or 1, S or 1]: a mask that does not depend on the
        query stays small."""
        self.additive: dict[torch.dtype, Tensor] = {}

    @property
    def allowed_BTS(self) -> Tensor:
        """Whether query t of row b may attend to key s; B is 1 if all rows are equal."""
        return self.allowed.expand(-1, self.grid.T, self.grid.S)

    @cached_property
    def is_full(self) -> bool:
        return bool(self.allowed.all())

    @cached_property
    def empty_BT(self) -> Tensor | None:
        """Queries without any allowed key; None if there are none."""
        empty_BT = ~self.allowed.any(dim=-1).expand(-1, self.grid.T)
        return empty_BT if bool(empty_BT.any()) else None

    def additive_B1TS(self, dtype: torch.dtype) -> Tensor:
        """0 where allowed, -inf elsewhere: added to the scores of every head."""
        if dtype not in self.additive:
            added = additive(self.allowed, dtype).expand(-1, self.grid.T, self.grid.S)
            self.additive[dtype] = added[:, None]
        return self.additive[dtype]


def dense(mask: Mask, grid: Grid) -> Dense:
    """The mask as a matrix, cached on the mask object."""
    return cached_on_mask(mask, ("dense", grid), lambda: Dense(all_pairs(mask, grid), grid))


def all_pairs(mask: Mask, grid: Grid) -> Tensor:
    """`mask.allows` for all pairs of the grid, before broadcasting."""
    b = torch.arange(grid.B, device=grid.device)[:, None, None]
    return mask.allows(b, grid.q_BT[:, :, None], grid.k_S[None, None])


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where True, -inf where False."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, -torch.inf
    )


def cached_on_mask(mask: Mask, key: object, compute: Callable[[], Value]) -> Value:
    """`compute()`, called once for each key of this mask object."""
    cache: dict[object, object] = mask.__dict__.setdefault("_cache", {})
    if key not in cache:
        while len(cache) >= MAX_CACHED:
            del cache[next(iter(cache))]
        cache[key] = compute()
    return cast(Value, cache[key])
