"""The contract of a position encoding. Each kind uses one of three doors and leaves the others:

    add     x_BTD  -> x_BTD                 absolute: sinusoidal, learned
    rotate  q, k   -> q, k                  rotary: pairs turned further with each position
    bias    layer, q_BTHC -> Bias | None    relative: added to the scores (Shaw, T5, ALiBi)

A bias speaks of slots (core/kv.py), so it is the same with and without a cache. One instance serves
a whole stack; a kind with tables per layer keeps them stacked by layer inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn


class Bias(Protocol):
    """Numbers added to the scores, made tile by tile so that nobody stores T x S of them."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors it is made from that may need gradients."""

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        """bias_BHTS (B may be 1) for queries t_T of this pass, which stand at slots q_BT, and key
        slots k_S. `tensors` stand in for `self.tensors()`, so that a kernel can ask for their
        gradients."""


@dataclass(frozen=True)
class PositionShape:
    """What a position encoding must know of the stack it serves."""

    width: int
    num_heads: int
    head_size: int
    """Size of the query vectors that `bias` sees."""
    rotary_size: int
    """Size of the vectors that `rotate` sees (head_size, or the decoupled part for MLA)."""
    num_layers: int
    max_len: int
    is_causal: bool


class Position(nn.Module):
    """No positions at all; the base of every kind."""

    turns_late: bool = False
    """True: the angle of a key depends on the length of its sequence, so keys are stored as they
    are and turned each time they are read."""

    def __init__(self, config: object, shape: PositionShape) -> None:
        super().__init__()

    def add(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD

    def added(self, num_rows: int) -> Tensor | None:
        """The rows that `add` adds, by position: `num_rows` of them or more, float32. None: there
        is no such table, or it is not that long."""
        return None

    def rotate(self, x_BTHO: Tensor, positions_BT: Tensor, lengths: int | Tensor) -> Tensor:
        """Turn queries or keys; positions_BT is [1, T] or [B, T]. `lengths`: tokens of each
        sequence so far, one number or a tensor [B]; only a kind whose angles depend on the length
        (`turns_late`) reads it."""
        return x_BTHO

    def bias(self, layer: int, q_BTHC: Tensor) -> Bias | None:
        return None
