"""Banned: these ids become -inf, whatever their bias."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row, as_ids


def banned(logits_V: Tensor, row: Row) -> Tensor:
    if not row.config.banned:
        return logits_V
    return logits_V.index_fill(0, as_ids(row.config.banned, logits_V.device), float("-inf"))
