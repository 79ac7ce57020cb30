"""Which rows of a tensor the tiles of a call read and write: an index, or a view where rows are
evenly spaced.

    index_BT[b, t] = first + b * outer + t * inner        ->  no copy: strides say it all
      a window of 3 tiles over tiles of 128:  outer 128, inner 1, 384 rows each, overlapping
      one class of a dilated pattern:         inner is the step

The tensors are flattened, [rows, heads, ...]; what comes out is heads first, as the fused kernel
wants it. A row number equal to `limit` stands for nothing. Differs from gathering alone: most tiles
of most patterns need no copy at all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Spacing(NamedTuple):
    """Evenly spaced rows: first + b * outer + t * inner."""

    first: int
    outer: int
    inner: int


class Rows:
    """Row numbers index_BT, each below `limit` or `limit` itself, which stands for nothing."""

    def __init__(self, index_BT: Tensor, limit: int) -> None:
        self.index_BT, self.limit = index_BT, limit
        self.flat = index_BT.flatten()
        self.real = self.flat.clamp(max=limit - 1)
        self.spacing = spacing_of(index_BT, limit)

    def take(self, x: Tensor) -> Tensor:
        """The rows of x as [B, heads, T, ...]. What stands for nothing gives some row, or x's row
        `limit` where it has one."""
        if self.spacing is not None:
            return self.view(x, self.spacing).transpose(1, 2)
        index = self.flat if len(x) > self.limit else self.real
        return x.index_select(0, index).unflatten(0, self.index_BT.shape).transpose(1, 2)

    def put(self, x: Tensor, values_BHT: Tensor) -> None:
        """Write values [B, heads, T, ...] into the rows of x, which has a row `limit` to waste."""
        if self.spacing is not None:
            self.view(x, self.spacing).copy_(values_BHT.transpose(1, 2))
        else:
            x.index_copy_(0, self.flat, values_BHT.transpose(1, 2).flatten(0, 1))

    def add(self, x: Tensor, values_BHT: Tensor) -> None:
        """Add values [B, heads, T, ...] to the rows of x; rows may come more than once."""
        values = values_BHT.transpose(1, 2)
        if self.spacing is None:
            index = self.flat if len(x) > self.limit else self.real
            x.index_add_(0, index, values.flatten(0, 1))
            return
        view = self.view(x, self.spacing)
        # pieces as long as tiles are apart: inside a piece no row comes twice
        size = self.spacing.outer // self.spacing.inner
        for piece, more in zip(view.split(size, dim=1), values.split(size, dim=1), strict=True):
            piece += more

    def view(self, x: Tensor, spacing: Spacing) -> Tensor:
        first, outer, inner = spacing
        step, *rest = x.stride()
        return x.as_strided(
            (*self.index_BT.shape, *x.shape[1:]),
            (outer * step, inner * step, *rest),
            x.storage_offset() + first * step,
        )


def spacing_of(index_BT: Tensor, limit: int) -> Spacing | None:
    """How the rows are spaced, if evenly, all of them real, and tiles a whole number of steps
    apart."""
    B, T = index_BT.shape
    first = int(index_BT[0, 0])
    inner = int(index_BT[0, 1]) - first if T > 1 else 1
    outer = int(index_BT[1, 0]) - first if B > 1 else T * inner
    if inner < 1 or outer < inner or outer % inner:
        return None
    b, t = (torch.arange(n, device=index_BT.device) for n in (B, T))
    is_even = bool((index_BT == first + b[:, None] * outer + t * inner).all())
    return Spacing(first, outer, inner) if is_even and int(index_BT[-1, -1]) < limit else None
