"""Bias: a number is added to the logits of single tokens (OpenAI's logit_bias).

Differs from vLLM, which cuts the number to [-100, 100]: here it is added as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.sampling.base import Row, as_ids


def logit_bias(logits_V: Tensor, row: Row) -> Tensor:
    bias = row.config.logit_bias
    if not bias:
        return logits_V
    values = torch.tensor(list(bias.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, as_ids(list(bias), logits_V.device), values)
