"""The elementary masks: slots of a query and a key -> whether the query may attend to the key.

    by distance          Causal, Window, Strided
    by slot or segment   Global, Documents, Padding, Prefix, Blocks
    combined             dilated, strided

Masks whose tensor has the letter B differ between the rows of the batch. A window is two-sided:
a causal model uses `Window(w) & Causal()`, which is Mistral's sliding window of the query itself
and the w - 1 keys before it (Jiang 2023).

The bounds are exact for every tile, with one exception: for Documents whose numbers do not increase
along the row, an empty tile may be reported as nonempty. Distances of a tile take every value from
q_lo - k_hi to q_hi - k_lo; the other masks look up ranges in small tables (`RangeExtremes`,
`box_sum`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weft.core.errors import UsageError
from weft.nn.attention.masks.algebra import Bounds, MaskBase, broadcast_ends, same_rank


@dataclass(frozen=True, eq=False)
class Causal(MaskBase):
    """A query attends to itself and to earlier keys: k <= q."""

    by_distance = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        return (k_lo <= q_hi)[None], (k_hi <= q_lo)[None]


@dataclass(frozen=True, eq=False)
class Window(MaskBase):
    """A query attends to keys nearer than `size` on both sides: |q - k| < size."""

    size: int
    by_distance = True

    def __post_init__(self) -> None:
        check_positive("window size", self.size)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.size

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        min_distance, max_distance = q_lo - k_hi, q_hi - k_lo
        nonempty = (min_distance < self.size) & (max_distance > -self.size)
        full = (max_distance < self.size) & (min_distance > -self.size)
        return nonempty[None], full[None]


@dataclass(frozen=True, eq=False)
class Strided(MaskBase):
    """A query attends to every `step`-th key, itself included: (q - k) is a multiple of step."""

    step: int
    by_distance = True

    def __post_init__(self) -> None:
        check_positive("step", self.step)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) % self.step == 0

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        min_distance, max_distance = q_lo - k_hi, q_hi - k_lo
        nonempty = max_distance - max_distance % self.step >= min_distance
        full = nonempty if self.step == 1 else nonempty & (min_distance == max_distance)
        return nonempty[None], full[None]


@dataclass(frozen=True, eq=False)
class Global(MaskBase):
    """Chosen slots attend to every slot and every slot attends to them (Beltagy 2020): the first n,
    or a tuple of slots."""

    tokens: int | tuple[int, ...]

    @cached_property
    def slots(self) -> Tensor:
        chosen = range(self.tokens) if isinstance(self.tokens, int) else sorted(set(self.tokens))
        return torch.tensor(list(chosen), dtype=torch.long)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.is_global(q) | self.is_global(k)

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        any_q, all_q = self.global_in_range(q_lo, q_hi)
        any_k, all_k = self.global_in_range(k_lo, k_hi)
        return (any_q | any_k)[None], (all_q | all_k)[None]

    def is_global(self, slot: Tensor) -> Tensor:
        if isinstance(self.tokens, int):
            return slot < self.tokens
        result = slot < 0
        for token in self.tokens:
            result = result | (slot == token)
        return result

    def global_in_range(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """(any, all) of the slots lo..hi are global."""
        slots, lo, hi = self.slots.to(lo.device), lo.contiguous(), hi.contiguous()
        count = torch.searchsorted(slots, hi, right=True) - torch.searchsorted(slots, lo)
        return count > 0, count == hi - lo + 1


@dataclass(frozen=True, eq=False)
class Documents(MaskBase):
    """Tokens of a packed sample attend to their own document only. documents_BS[b, s]: the document
    of slot s."""

    documents_BS: Tensor

    @cached_property
    def extremes(self) -> RangeExtremes:
        return RangeExtremes(self.documents_BS)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.documents_BS[b, q] == self.documents_BS[b, k]

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        q_lo, q_hi, k_lo, k_hi = same_rank(q_lo, q_hi, k_lo, k_hi)
        q_min, q_max = self.extremes(q_lo, q_hi)
        k_min, k_max = self.extremes(k_lo, k_hi)
        nonempty = torch.maximum(q_min, k_min) <= torch.minimum(q_max, k_max)
        full = (q_min == q_max) & (k_min == k_max) & (q_min == k_min)
        return nonempty, full


@dataclass(frozen=True, eq=False)
class Padding(MaskBase):
    """Only the first lengths_B[b] keys of row b are real."""

    lengths_B: Tensor

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.lengths_B[b]

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        _, _, k_lo, k_hi = broadcast_ends(q_lo, q_hi, k_lo, k_hi)
        length = self.lengths_B.view(-1, *[1] * k_lo.ndim)
        return k_lo < length, k_hi < length


class Prefix(Padding):
    """Every query attends to the keys of the prefix; a prefix language model is `Causal() |
    Prefix(lengths_B)`."""


@dataclass(frozen=True, eq=False)
class Blocks(MaskBase):
    """A pattern of square blocks (Child 2019, Zaheer 2020): pattern[q // size, k // size]; pairs
    outside of the pattern are not allowed."""

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
        is_inside = (i < rows) & (j < columns)
        return self.pattern[i.clamp(max=rows - 1), j.clamp(max=columns - 1)] & is_inside

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        ends = [end // self.size for end in broadcast_ends(q_lo, q_hi, k_lo, k_hi)]
        count = box_sum(self.counts, *ends)
        area = (ends[1] - ends[0] + 1) * (ends[3] - ends[2] + 1)
        return (count > 0)[None], (count == area)[None]


def dilated(size: int, step: int) -> MaskBase:
    """A window of `size` keys on each side with gaps of `step`: it reaches `step` times as far
    (Beltagy 2020)."""
    return Window(size * step) & Strided(step)


def strided(stride: int) -> MaskBase:
    """The near keys, and every stride-th one farther away (Child 2019, "strided")."""
    return Window(stride) | Strided(stride)


class RangeExtremes:
    """Minimum and maximum of values_BS over ranges lo..hi of slots, ends included: [B, *shape of
    lo]. A sparse table (Bender 2000): for each power of two, the extremes of every run of that
    length; any range is the union of two such runs."""

    def __init__(self, values_BS: Tensor) -> None:
        self.minima = run_extremes(values_BS, torch.minimum)
        self.maxima = run_extremes(values_BS, torch.maximum)
        self.last = values_BS.shape[1] - 1

    def __call__(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        level = log2_floor((hi - lo + 1).clamp(max=self.last + 1))
        second = (hi + 1 - (1 << level)).clamp(0, self.last)
        lo = lo.clamp(max=self.last)
        minimum = torch.minimum(self.minima[level, :, lo], self.minima[level, :, second])
        maximum = torch.maximum(self.maxima[level, :, lo], self.maxima[level, :, second])
        return minimum.movedim(-1, 0), maximum.movedim(-1, 0)


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
    """The exponent of the largest power of two that is at most x."""
    return torch.frexp(x.double())[1].long() - 1


def box_counts(matrix: Tensor) -> Tensor:
    """counts[i, j]: number of true elements in matrix[:i, :j] (summed areas, Crow 1984)."""
    return torch.nn.functional.pad(matrix.long().cumsum(0).cumsum(1), (1, 0, 1, 0))


def box_sum(counts: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Number of true elements in rows top..bottom and columns left..right, ends included; there are
    none outside of the matrix."""
    rows, columns = counts.shape[0] - 1, counts.shape[1] - 1
    top, bottom = top.clamp(max=rows), (bottom + 1).clamp(max=rows)
    left, right = left.clamp(max=columns), (right + 1).clamp(max=columns)
    return counts[bottom, right] - counts[top, right] - counts[bottom, left] + counts[top, left]


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name} is {value}: a mask needs at least 1. Use a positive number.")
