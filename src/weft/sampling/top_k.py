"""Top-k: all but the k largest logits become -inf (Fan 2018). Ties with the k-th stay, as in
transformers and vLLM."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.base import Row
from weft.sampling.candidates import cut, largest


def top_k(logits_V: Tensor, row: Row) -> Tensor:
    k = row.config.top_k
    if k == 0 or k >= len(logits_V):
        return logits_V
    return cut(logits_V, float(largest(logits_V, k)[-1]))
