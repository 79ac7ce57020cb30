"""Draw one token a row: shaped logits_BV and numbers in [0, 1) -> ids_B.

Each number is made from (seed, position) alone, so that neither the batch nor a repeated step
changes a draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for this place in this request (splitmix64, Steele 2014)."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def draw(logits_BV: Tensor, u_B: Tensor) -> Tensor:
    """The token at which the cumulative probability passes u."""
    p_BV = logits_BV.double().softmax(-1)
    cumulative_BV = p_BV.cumsum(-1)
    target_B1 = u_B.double()[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(-1)


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token; the lowest id among equals."""
    return logits_BV.argmax(-1)
