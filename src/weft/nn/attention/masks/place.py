"""Masks that ask where a query or a key stands: Global, Documents, Padding, Prefix, Blocks.

Slots enter, yes or no leaves; the masks with a letter B in their tensor answer for each row of the
batch. The bounds are exact, from a small table that answers for any range of slots at once: counts
for Global and Blocks, least and greatest for Documents (whose numbers may come in any order; where
they do not rise, a tile may look as if it had work).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.nn.attention.masks.algebra import Bounds, MaskBase, same_rank, spread
from weft.nn.attention.masks.ranges import RangeExtremes, box_counts, box_sum


@dataclass(frozen=True, eq=False)
class Global(MaskBase):
    """Chosen slots see everything and are seen by everything (Beltagy 2020): the first n, or a
    tuple of slots."""

    tokens: int | tuple[int, ...]

    @cached_property
    def slots(self) -> Tensor:
        chosen = range(self.tokens) if isinstance(self.tokens, int) else sorted(set(self.tokens))
        return torch.tensor(list(chosen), dtype=torch.long)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.holds(q) | self.holds(k)

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        some_q, all_q = self.holds_range(q_lo, q_hi)
        some_k, all_k = self.holds_range(k_lo, k_hi)
        return (some_q | some_k)[None], (all_q | all_k)[None]

    def holds(self, x: Tensor) -> Tensor:
        if isinstance(self.tokens, int):
            return x < self.tokens
        result = x < 0
        for slot in self.tokens:
            result = result | (x == slot)
        return result

    def holds_range(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        slots, lo, hi = self.slots.to(lo.device), lo.contiguous(), hi.contiguous()
        count = torch.searchsorted(slots, hi, right=True) - torch.searchsorted(slots, lo)
        return count > 0, count == hi - lo + 1


@dataclass(frozen=True, eq=False)
class Documents(MaskBase):
    """Tokens of a packed sample see their own document only. documents_BS[b, s]: the document of
    slot s."""

    documents_BS: Tensor

    @cached_property
    def extremes(self) -> RangeExtremes:
        return RangeExtremes(self.documents_BS)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.documents_BS[b, q] == self.documents_BS[b, k]

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        q_lo, q_hi, k_lo, k_hi = same_rank(q_lo, q_hi, k_lo, k_hi)
        q_least, q_most = self.extremes(q_lo, q_hi)
        k_least, k_most = self.extremes(k_lo, k_hi)
        maybe = torch.maximum(q_least, k_least) <= torch.minimum(q_most, k_most)
        surely = (q_least == q_most) & (k_least == k_most) & (q_least == k_least)
        return maybe, surely


@dataclass(frozen=True, eq=False)
class Padding(MaskBase):
    """Only the first lengths_B[b] keys of row b are real."""

    lengths_B: Tensor

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.lengths_B[b]

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        _, _, k_lo, k_hi = spread(q_lo, q_hi, k_lo, k_hi)
        length = self.lengths_B.view(-1, *[1] * k_lo.ndim)
        return k_lo < length, k_hi < length


class Prefix(Padding):
    """Keys of the prefix are seen by every query; a prefix language model is `Causal() |
    Prefix(lengths_B)`."""


@dataclass(frozen=True, eq=False)
class Blocks(MaskBase):
    """Any pattern of square blocks (Child 2019, Zaheer 2020): pattern[q // size, k // size];
    outside it, nothing."""

    pattern: Tensor
    size: int

    def __post_init__(self) -> None:
        if self.pattern.ndim != 2 or self.pattern.dtype != torch.bool or self.size < 1:
            raise UsageError(
                f"a block pattern is a matrix of bool and a block size of at least 1, not "
                f"{tuple(self.pattern.shape)} of {self.pattern.dtype} and {self.size}. "
                "Use pattern.bool()."
            )

    @cached_property
    def counts(self) -> Tensor:
        return box_counts(self.pattern)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        rows, columns = self.pattern.shape
        i, j = q // self.size, k // self.size
        inside = (i < rows) & (j < columns)
        return self.pattern[i.clamp(max=rows - 1), j.clamp(max=columns - 1)] & inside

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        ends = [end // self.size for end in spread(q_lo, q_hi, k_lo, k_hi)]
        count = box_sum(self.counts, *ends)
        area = (ends[1] - ends[0] + 1) * (ends[3] - ends[2] + 1)
        return (count > 0)[None], (count == area)[None]
