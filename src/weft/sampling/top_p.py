"""Top-p: the smallest set of most likely tokens whose probability reaches p; the rest become -inf
(Holtzman 2020)."""

from __future__ import annotations

from torch import Tensor

from weft.sampling.settings import SamplingConfig


def top_p(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    if config.top_p >= 1:
        return logits_BV
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
    # the token that crosses p stays, so at least one token always does
    dropped_BV = (before_BV >= config.top_p).scatter(-1, order_BV, before_BV >= config.top_p)
    return logits_BV.masked_fill(dropped_BV, float("-inf"))
