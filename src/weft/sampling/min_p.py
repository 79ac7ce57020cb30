"""Min-p: tokens less than p times as likely as the most likely one become -inf (Nguyen 2024)."""

from __future__ import annotations

import math

from torch import Tensor

from weft.sampling.base import Row
from weft.sampling.candidates import cut


def min_p(logits_V: Tensor, row: Row) -> Tensor:
    if row.config.min_p == 0:
        return logits_V
    return cut(logits_V, float(logits_V.max()) + math.log(row.config.min_p))
