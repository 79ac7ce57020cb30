"""Combination of masks by `a & b`, `a | b` and `~a`. A mask is a description; no matrix is built.

Each mask implements two methods (attention/base.py): `allows` for single pairs of slots, and
`bounds` for whole tiles of them, in three-valued logic: a tile is empty, full or partial. Differs
from FlexAttention's mask_mod, which is defined for pairs only and must be evaluated everywhere to
find the empty blocks (He 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.base import Mask

Bounds = tuple[Tensor, Tensor]
"""(nonempty, full) of tiles: see Mask.bounds."""


class MaskBase:
    """Base of every mask: provides `&`, `|` and `~`."""

    by_distance: bool = False
    """True: the mask depends on the distance q - k alone, so tiles at the same distance share one
    matrix."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define which pairs it allows")

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        raise NotImplementedError(f"{type(self).__name__} does not define which tiles it allows")

    def __and__(self, other: MaskBase) -> MaskBase:
        return simplified(And, self, other)

    def __or__(self, other: MaskBase) -> MaskBase:
        return simplified(Or, self, other)

    def __invert__(self) -> MaskBase:
        return self.mask if isinstance(self, Not) else Not(self)


@dataclass(frozen=True, eq=False)
class Full(MaskBase):
    """Every pair is allowed."""

    by_distance = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) == (q - k)  # all true, in a form that supports vmap and broadcasting

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        all_true = self.allows(q_lo, q_lo + q_hi, k_lo + k_hi)[None]
        return all_true, all_true


@dataclass(frozen=True, eq=False)
class And(MaskBase):
    """Allowed by all of the masks."""

    masks: tuple[MaskBase, ...]

    @property
    def by_distance(self) -> bool:  # type: ignore[override]
        return all(mask.by_distance for mask in self.masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            result = result & mask.allows(b, q, k)
        return result

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        nonempty, full = self.masks[0].bounds(q_lo, q_hi, k_lo, k_hi)
        for mask in self.masks[1:]:
            other_nonempty, other_full = mask.bounds(q_lo, q_hi, k_lo, k_hi)
            nonempty, full = nonempty & other_nonempty, full & other_full
        return nonempty, full


@dataclass(frozen=True, eq=False)
class Or(MaskBase):
    """Allowed by at least one of the masks."""

    masks: tuple[MaskBase, ...]

    @property
    def by_distance(self) -> bool:  # type: ignore[override]
        return all(mask.by_distance for mask in self.masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            result = result | mask.allows(b, q, k)
        return result

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        nonempty, full = self.masks[0].bounds(q_lo, q_hi, k_lo, k_hi)
        for mask in self.masks[1:]:
            other_nonempty, other_full = mask.bounds(q_lo, q_hi, k_lo, k_hi)
            nonempty, full = nonempty | other_nonempty, full | other_full
        return nonempty, full


@dataclass(frozen=True, eq=False)
class Not(MaskBase):
    """Allowed where the mask forbids."""

    mask: MaskBase

    @property
    def by_distance(self) -> bool:  # type: ignore[override]
        return self.mask.by_distance

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ~self.mask.allows(b, q, k)

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        nonempty, full = self.mask.bounds(q_lo, q_hi, k_lo, k_hi)
        return ~full, ~nonempty


def simplified(kind: type[And] | type[Or], *masks: MaskBase) -> MaskBase:
    """The masks combined by `kind`, with nested combinations of that kind flattened and Full
    eliminated."""
    flat = [
        inner for mask in masks for inner in (mask.masks if isinstance(mask, kind) else (mask,))
    ]
    full = [mask for mask in flat if isinstance(mask, Full)]
    if full and kind is Or:
        return full[0]
    rest = [mask for mask in flat if not isinstance(mask, Full)]
    if not rest:
        return full[0]
    return rest[0] if len(rest) == 1 else kind(tuple(rest))


def all_of(*masks: MaskBase | None) -> MaskBase | None:
    """`a & b & ...` of the masks that are not None; None (no mask) if there are none."""
    present = [mask for mask in masks if mask is not None]
    return simplified(And, *present) if present else None


def conjuncts(mask: MaskBase) -> tuple[MaskBase, ...]:
    """The masks whose conjunction this mask is: those of an And, or the mask itself."""
    return mask.masks if isinstance(mask, And) else (mask,)


def depends_on_distance(mask: Mask) -> bool:
    """Whether the mask depends on the distance q - k alone."""
    return isinstance(mask, MaskBase) and mask.by_distance


def same_rank(*ends: Tensor) -> list[Tensor]:
    """The ends with equally many dimensions, so that a batch dimension can be added in front."""
    rank = max(end.ndim for end in ends)
    return [end.view(*[1] * (rank - end.ndim), *end.shape) for end in ends]


def broadcast_ends(q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> list[Tensor]:
    """The four ends of the tiles, broadcast to one shape."""
    return list(torch.broadcast_tensors(q_lo, q_hi, k_lo, k_hi))
