"""Min-p: tokens less than p times as likely as the most likely one become -inf (Nguyen 2024)."""

from __future__ import annotations

import math

from torch import Tensor

from weft.sampling.settings import SamplingConfig


def min_p(logits_BV: Tensor, config: SamplingConfig) -> Tensor:
    if config.min_p == 0:
        return logits_BV
    least_B1 = logits_BV.max(dim=-1, keepdim=True).values + math.log(config.min_p)
    return logits_BV.masked_fill(logits_BV < least_B1, float("-inf"))
