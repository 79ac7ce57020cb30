"""The sampler: logits_BV and one SamplingRow per row -> ids_B.

A token depends only on the logits and the SamplingRow of its own row, bit for bit: rows without
processors share one argmax, which adds nothing up, and every other row is computed by itself.

A draw uses a random number computed from (seed, position) alone, so neither the batch nor a
repeated step changes it. Differs from torch.multinomial, whose generator carries state from draw to
draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.sampling.logits_processors import (
    NEG_INF,
    PROCESSORS,
    WARPERS,
    SamplingRow,
    probabilities,
    process_logits,
)

MASK_64 = (1 << 64) - 1

NO_TOKEN = -1
"""Returned instead of an id if every token is excluded."""
NOT_FINITE = -2
"""Returned instead of an id if the model's logits contain NaN or infinity, or are all -inf."""


def sample(logits_BV: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Choose one id per row. NO_TOKEN (-1) where grammar and bans exclude all tokens, NOT_FINITE
    (-2) where the logits are not numbers: the caller ends that request with an error, the others
    continue."""
    check_shapes(logits_BV=logits_BV, B=len(rows))
    if all(row.is_argmax for row in rows):
        return greedy(logits_BV)
    argmax_rows = [index for index, row in enumerate(rows) if row.is_argmax]
    ids_B = torch.empty(len(rows), dtype=torch.long, device=logits_BV.device)
    if argmax_rows:
        ids_B[argmax_rows] = greedy(logits_BV[argmax_rows])
    for index, row in enumerate(rows):
        if not row.is_argmax:
            ids_B[index] = sample_row(logits_BV[index], row)
    return ids_B


def sample_row(model_logits_V: Tensor, row: SamplingRow) -> int:
    """Choose the id of one row."""
    logits_V = process_logits(model_logits_V.float(), row, PROCESSORS)
    # a maximum is NaN if any logit is; only excluded tokens are not in that of the processed logits
    has_excluded = row.allowed_V is not None or bool(row.params.banned)
    if has_excluded and not math.isfinite(model_logits_V.max()):
        return NOT_FINITE
    largest = float(logits_V.max())
    if not math.isfinite(largest):
        return NO_TOKEN if has_excluded and largest == NEG_INF else NOT_FINITE
    if row.params.is_greedy:
        return int(logits_V.argmax())
    random_number = uniform(row.params.seed, row.position)
    return draw(process_logits(logits_V, row, WARPERS), random_number)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for this position of this request (splitmix64, Steele 2014)."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK_64
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)


def draw(logits_V: Tensor, u: float) -> int:
    """The token at which the cumulative probability passes u (inverse transform sampling);
    NO_TOKEN if all are excluded."""
    if not logits_V.max() > NEG_INF:
        return NO_TOKEN
    mass_V = probabilities(logits_V).cumsum(0)
    index = torch.searchsorted(mass_V, mass_V[-1:] * u, right=True)
    # u * total may be rounded up to the total, which the last possible token reaches
    last = torch.searchsorted(mass_V, mass_V[-1:])
    return int(torch.minimum(index, last))


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token of each row, ties by the lowest id; NOT_FINITE where its logit is NaN
    or infinite. The argmax of a row with NaN is a NaN, so its logit alone tells."""
    if logits_BV.device.type == "cpu" and logits_BV.dtype == torch.float32:
        # numpy's argmax is vectorized, torch's is not
        array_BV = logits_BV.detach().numpy()
        array_B = array_BV.argmax(-1)
        array_B[~np.isfinite(array_BV[np.arange(len(array_B)), array_B])] = NOT_FINITE
        return torch.from_numpy(array_B)
    ids_B = logits_BV.argmax(-1)
    is_finite_B = logits_BV.gather(-1, ids_B[:, None])[:, 0].isfinite()
    return ids_B.where(is_finite_B, NOT_FINITE)
