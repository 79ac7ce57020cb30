"""Linear: y = x W^T + bias, x [..., I] -> y [..., O], or a range of the outputs.

Differs from nn.Linear: a range of the outputs can be computed, because cross-attention multiplies
by some rows of the fused QKV matrix. For inference a model's Linear layers are replaced by
PackedLinear (packed_modules.py).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """nn.Linear whose forward takes an optional range of outputs."""

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        return linear_range(input, self.weight, self.bias, outputs)


def linear_range(
    x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, outputs: slice | None
) -> Tensor:
    """x W^T + bias for all outputs, or for a range of them."""
    if outputs is None:
        return F.linear(x, weight_OI, bias_O)
    return F.linear(x, weight_OI[outputs], None if bias_O is None else bias_O[outputs])
