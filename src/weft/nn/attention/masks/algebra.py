"""How masks combine: `a & b`, `a | b`, `~a`. A mask enters as a description, a description leaves;
no matrix is made.

Each answers two questions (attention/base.py): `allows` for single pairs of slots, and `bounds` for
whole rectangles of them, as three-valued logic: *maybe* some pair is allowed, *surely* all are.
Differs from FlexAttention's mask_mod, which answers for pairs only and must be evaluated everywhere
to find the empty blocks (He 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.nn.attention.base import Mask

Bounds = tuple[Tensor, Tensor]


class MaskBase:
    """The base of every mask here: gives it `&`, `|` and `~`."""

    is_relative: bool = False
    """True: the answer depends on the distance q - k alone, so tiles at the same distance share one
    matrix."""

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say which pairs it allows")

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        raise NotImplementedError(f"{type(self).__name__} does not say which tiles it allows")

    def __and__(self, other: MaskBase) -> MaskBase:
        return simplest(And, self, other)

    def __or__(self, other: MaskBase) -> MaskBase:
        return simplest(Or, self, other)

    def __invert__(self) -> MaskBase:
        return self.mask if isinstance(self, Not) else Not(self)


@dataclass(frozen=True, eq=False)
class Full(MaskBase):
    """Every query sees every key."""

    is_relative = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) == (q - k)  # all true, in a form that vmap and broadcasting understand

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        everywhere = self.allows(q_lo, q_lo + q_hi, k_lo + k_hi)[None]
        return everywhere, everywhere


@dataclass(frozen=True, eq=False)
class And(MaskBase):
    """Allowed by every one of the masks."""

    masks: tuple[MaskBase, ...]

    @property
    def is_relative(self) -> bool:  # type: ignore[override]
        return all(mask.is_relative for mask in self.masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            result = result & mask.allows(b, q, k)
        return result

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        maybe, surely = self.masks[0].bounds(q_lo, q_hi, k_lo, k_hi)
        for mask in self.masks[1:]:
            more_maybe, more_surely = mask.bounds(q_lo, q_hi, k_lo, k_hi)
            maybe, surely = maybe & more_maybe, surely & more_surely
        return maybe, surely


@dataclass(frozen=True, eq=False)
class Or(MaskBase):
    """Allowed by at least one of the masks."""

    masks: tuple[MaskBase, ...]

    @property
    def is_relative(self) -> bool:  # type: ignore[override]
        return all(mask.is_relative for mask in self.masks)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        result = self.masks[0].allows(b, q, k)
        for mask in self.masks[1:]:
            result = result | mask.allows(b, q, k)
        return result

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        maybe, surely = self.masks[0].bounds(q_lo, q_hi, k_lo, k_hi)
        for mask in self.masks[1:]:
            more_maybe, more_surely = mask.bounds(q_lo, q_hi, k_lo, k_hi)
            maybe, surely = maybe | more_maybe, surely | more_surely
        return maybe, surely


@dataclass(frozen=True, eq=False)
class Not(MaskBase):
    """Allowed where the mask forbids."""

    mask: MaskBase

    @property
    def is_relative(self) -> bool:  # type: ignore[override]
        return self.mask.is_relative

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ~self.mask.allows(b, q, k)

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        maybe, surely = self.mask.bounds(q_lo, q_hi, k_lo, k_hi)
        return ~surely, ~maybe


def simplest(kind: type[And] | type[Or], *masks: MaskBase) -> MaskBase:
    """The masks joined by `kind`: nested ones of that kind are spread out, Full does what it
    must."""
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
    """`a & b & ...` of those that are given; None (no mask at all) when none is."""
    given = [mask for mask in masks if mask is not None]
    return simplest(And, *given) if given else None


def is_relative(mask: Mask) -> bool:
    """Whether the mask depends on the distance q - k alone."""
    return isinstance(mask, MaskBase) and mask.is_relative


def same_rank(*ends: Tensor) -> list[Tensor]:
    """The ends with equally many dimensions, so that one more can be put before them."""
    rank = max(end.ndim for end in ends)
    return [end.view(*[1] * (rank - end.ndim), *end.shape) for end in ends]


def spread(q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> list[Tensor]:
    """The four ends of the rectangles, broadcast to one shape."""
    return list(torch.broadcast_tensors(q_lo, q_hi, k_lo, k_hi))
