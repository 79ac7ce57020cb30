"""Two partial results over disjoint keys -> the result over all of them, exactly.

    lse = log(exp(lse_a) + exp(lse_b)),   out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

The step that joins tiles (Dao 2022), shared prefixes, pieces of a long cache and devices of a ring.
Differs from the formula: the larger lse is taken out first, and a side that saw no key (lse -inf)
weighs nothing, also in the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge(
    out_a_BTHU: Tensor, lse_a_BHT: Tensor, out_b_BTHU: Tensor, lse_b_BHT: Tensor
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT) over the keys of both sides. Where neither saw a key: 0 and -inf."""
    peak_BHT = torch.maximum(lse_a_BHT, lse_b_BHT).detach()
    is_empty_BHT = peak_BHT == -torch.inf
    peak_BHT = peak_BHT.masked_fill(is_empty_BHT, 0.0)
    a_BHT, b_BHT = (lse_a_BHT - peak_BHT).exp(), (lse_b_BHT - peak_BHT).exp()
    total_BHT = (a_BHT + b_BHT).masked_fill(is_empty_BHT, 1.0)
    out = weigh(out_a_BTHU, a_BHT / total_BHT) + weigh(out_b_BTHU, b_BHT / total_BHT)
    lse_BHT = (peak_BHT + total_BHT.log()).masked_fill(is_empty_BHT, -torch.inf)
    return out.to(out_a_BTHU.dtype), lse_BHT


def weigh(out_BTHU: Tensor, share_BHT: Tensor) -> Tensor:
    return out_BTHU * share_BHT.transpose(1, 2)[..., None]
