"""Presence penalty: l -> l - a for each token that the output has, once (OpenAI).

The prompt does not count, as in the frequency penalty.
"""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row, as_ids


def presence_penalty(logits_V: Tensor, row: Row) -> Tensor:
    penalty = row.config.presence_penalty
    if penalty == 0 or not len(row.output):
        return logits_V
    ids_N = as_ids(row.output, logits_V.device)
    return logits_V.scatter(0, ids_N, logits_V[ids_N] - penalty)
