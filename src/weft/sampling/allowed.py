"""Allowed: what a grammar does not allow here becomes -inf."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row


def allowed(logits_V: Tensor, row: Row) -> Tensor:
    if row.allowed_V is None:
        return logits_V
    return logits_V.masked_fill(~row.allowed_V.to(logits_V.device), float("-inf"))
