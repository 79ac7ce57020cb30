"""Top-k: all but the k largest logits become -inf (Fan 2018). Ties with the k-th stay."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.settings import SamplingConfig


def top_k(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    if config.top_k == 0 or config.top_k >= logits_BV.shape[-1]:
        return logits_BV
    smallest_B1 = logits_BV.topk(config.top_k, dim=-1).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < smallest_B1, float("-inf"))
