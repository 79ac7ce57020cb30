"""The kernel that chooses: flash, or sparse where a long call's mask leaves little work.

The choice reads sizes and the mask's schedule, never the numbers. Short calls always take flash:
there a written-out mask costs less than tiles do.
"""

from __future__ import annotations

from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.flash import flash_attention, has_short_form
from weft.nn.attention.kernels.schedule import schedule_of
from weft.nn.attention.kernels.sparse import sparse_attention
from weft.nn.attention.masks.dense import Grid
from weft.nn.positions.base import Bias

LONG = 2**20
"""Pairs of one row of the batch from which tiles can pay: 1,024 queries by 1,024 keys."""
LITTLE = 0.6
"""Share of all pairs below which they do."""


def auto_attention(
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    kernel = (
        sparse_attention if bias is None and leaves_little(mask, q_BTHC, view) else flash_attention
    )
    return kernel(q_BTHC, view, mask, bias, scale, softcap=softcap, dropout=dropout)


def leaves_little(mask: Mask | None, q_BTHC: Tensor, view: KVView) -> bool:
    """Whether the mask rules out enough of a long call."""
    if mask is None or q_BTHC.shape[1] * view.k_BSKC.shape[1] < LONG:
        return False
    grid = Grid.of(q_BTHC, view)
    return not has_short_form(mask, None, grid) and schedule_of(mask, grid).density < LITTLE
