"""Frequency penalty: l -> l - c * f, c being how often the output has the token (OpenAI).

The prompt does not count: who quotes a word in a question may get it in the answer.
"""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row, as_ids


def frequency_penalty(logits_V: Tensor, row: Row) -> Tensor:
    penalty = row.config.frequency_penalty
    if penalty == 0 or not len(row.output):
        return logits_V
    ids_N, counts_N = as_ids(row.output, logits_V.device).unique(return_counts=True)
    return logits_V.index_add(0, ids_N, (counts_N * -penalty).to(logits_V.dtype))
