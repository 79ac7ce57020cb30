"""Draw one token a row: shaped logits_BV and numbers in [0, 1) -> ids_B.

Each number is made from (seed, position) alone, so that neither the batch nor a repeated step
changes a draw. Differs from torch.multinomial, whose generator remembers what was drawn before.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = (1 << 64) - 1

NO_TOKEN = -1
"""In place of an id where every token is ruled out."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for this place in this request (splitmix64, Steele 2014)."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def draw(logits_BV: Tensor, u_B: Tensor) -> Tensor:
    """The token of each row at which the cumulative probability passes u."""
    pairs = zip(logits_BV, u_B.tolist(), strict=True)
    return torch.tensor([draw_one(logits_V, u) for logits_V, u in pairs], device=logits_BV.device)


def draw_one(logits_V: Tensor, u: float) -> int:
    """The same for one row; NO_TOKEN if all is ruled out."""
    if not logits_V.max() > float("-inf"):
        return NO_TOKEN
    mass_V = probabilities(logits_V).cumsum(0)
    place = torch.searchsorted(mass_V, mass_V[-1:] * u, right=True)
    # u times the whole may be rounded up to the whole, which the last possible token reaches
    last = torch.searchsorted(mass_V, mass_V[-1:])
    return int(torch.minimum(place, last))


def probabilities(logits_V: Tensor) -> Tensor:
    """In float64, so that adding them up loses nothing."""
    # softmax, not exp: torch's exp is 20 times slower where results are too small for float32
    return logits_V.softmax(-1).double()


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token; the lowest id among equals."""
    if logits_BV.device.type == "cpu" and logits_BV.dtype == torch.float32:
        # numpy compares with whole vectors, torch one number after the other
        return torch.from_numpy(logits_BV.detach().numpy().argmax(-1))
    return logits_BV.argmax(-1)
