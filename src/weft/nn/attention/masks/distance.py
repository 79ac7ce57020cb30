"""Masks that ask only how far apart a query and a key are: Causal, Window, Every.

Slots enter, yes or no leaves. Over a rectangle of slots the distance q - k takes every value from
`q_lo - k_hi` to `q_hi - k_lo`, so the bounds are exact. A window is two-sided here; causal models
write `Window(w) & Causal()`, which is Mistral's sliding window: a query sees itself and the w - 1
keys before it (Jiang 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.core.errors import UsageError
from weft.nn.attention.masks.algebra import Bounds, MaskBase


@dataclass(frozen=True, eq=False)
class Causal(MaskBase):
    """A query sees itself and what came before: k <= q."""

    is_relative = True

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= q

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        return (k_lo <= q_hi)[None], (k_hi <= q_lo)[None]


@dataclass(frozen=True, eq=False)
class Window(MaskBase):
    """A query sees keys nearer than `size` on both sides: |q - k| < size."""

    size: int
    is_relative = True

    def __post_init__(self) -> None:
        at_least_one("window size", self.size)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.size

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        least, most = q_lo - k_hi, q_hi - k_lo
        maybe = (least < self.size) & (most > -self.size)
        surely = (most < self.size) & (least > -self.size)
        return maybe[None], surely[None]


@dataclass(frozen=True, eq=False)
class Every(MaskBase):
    """A query sees every `step`-th key, itself included: (q - k) is a multiple of step."""

    step: int
    is_relative = True

    def __post_init__(self) -> None:
        at_least_one("step", self.step)

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) % self.step == 0

    def bounds(self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor) -> Bounds:
        least, most = q_lo - k_hi, q_hi - k_lo
        maybe = most - most % self.step >= least
        surely = maybe if self.step == 1 else maybe & (least == most)
        return maybe[None], surely[None]


def at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{what} is {value}: a mask needs at least 1. Use a positive number.")
