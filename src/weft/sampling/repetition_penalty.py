"""Repetition penalty: l -> l / r if l > 0 else l * r, for each token of the prompt or the output,
once, however often it is there (Keskar 2019, as transformers and vLLM do it).

Differs from the paper, which divides negative logits too and so makes them likelier.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.sampling.base import Row, as_ids


def repetition_penalty(logits_V: Tensor, row: Row) -> Tensor:
    penalty = row.config.repetition_penalty
    if penalty == 1:
        return logits_V
    ids_N = torch.cat([as_ids(ids, logits_V.device) for ids in (row.prompt, row.output)])
    ids_N = ids_N[ids_N < len(logits_V)]  # a model may read more ids than it can write
    old_N = logits_V[ids_N]
    new_N = torch.where(old_N < 0, old_N * penalty, old_N / penalty)
    return logits_V.scatter(0, ids_N, new_N)
