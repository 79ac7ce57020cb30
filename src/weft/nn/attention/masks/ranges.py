"""Questions about ranges, answered for many ranges at once: least and greatest value, and how many
are true.

`RangeExtremes` is a sparse table (Bender 2000): for each power of two, the extreme of every run of
that length; any range is covered by two such runs. `box_counts` are summed areas (Crow 1984): a
rectangle is four look-ups.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RangeExtremes:
    """Least and greatest of values_BS over ranges lo..hi of slots, ends included; results are [B,
    *shape of lo]."""

    def __init__(self, values_BS: Tensor) -> None:
        self.least = run_extremes(values_BS, torch.minimum)
        self.most = run_extremes(values_BS, torch.maximum)
        self.last = values_BS.shape[1] - 1

    def __call__(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        level = log2_floor((hi - lo + 1).clamp(max=self.last + 1))
        second = (hi + 1 - (1 << level)).clamp(0, self.last)
        lo = lo.clamp(max=self.last)
        least = torch.minimum(self.least[level, :, lo], self.least[level, :, second])
        most = torch.maximum(self.most[level, :, lo], self.most[level, :, second])
        return least.movedim(-1, 0), most.movedim(-1, 0)


def run_extremes(values_BS: Tensor, extreme: object) -> Tensor:
    """table[i, b, s]: the extreme of values_BS[b, s : s + 2**i] (cut at the end of the row)."""
    levels, size = [values_BS], values_BS.shape[1]
    while 2 ** len(levels) <= size:
        half = 2 ** (len(levels) - 1)
        before = levels[-1]
        after = torch.cat([before[:, half:], before[:, -1:].expand(-1, half)], dim=1)
        levels.append(extreme(before, after))  # type: ignore[operator]
    return torch.stack(levels)


def log2_floor(x: Tensor) -> Tensor:
    """The exponent of the largest power of two that is not above x."""
    return torch.frexp(x.double())[1].long() - 1


def box_counts(matrix: Tensor) -> Tensor:
    """counts[i, j]: how many of matrix[:i, :j] are true."""
    return torch.nn.functional.pad(matrix.long().cumsum(0).cumsum(1), (1, 0, 1, 0))


def box_sum(counts: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """How many are true in rows top..bottom and columns left..right, ends included; outside the
    matrix none is."""
    rows, columns = counts.shape[0] - 1, counts.shape[1] - 1
    top, bottom = top.clamp(max=rows), (bottom + 1).clamp(max=rows)
    left, right = left.clamp(max=columns), (right + 1).clamp(max=columns)
    return counts[bottom, right] - counts[top, right] - counts[bottom, left] + counts[top, left]
