"""Sparse attention: the kernel contract of attention/base.py, computing only tiles with work.

Without a bias it is scheduled.py, linear in the length for a window, a dilated window or documents.
A bias or softcap takes tiled.py, which skips empty tiles too. Fewer queries than a tile, as in
decoding, leave nothing to skip and take flash.py.
"""

from __future__ import annotations

from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels import tiles
from weft.nn.attention.kernels.flash import flash_attention
from weft.nn.attention.kernels.scheduled import scheduled
from weft.nn.attention.kernels.tiled import tiled_attention
from weft.nn.attention.masks.algebra import Full
from weft.nn.positions.base import Bias


def sparse_attention(
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
    is_short = q_BTHC.shape[1] < tiles.TILE
    if is_short or dropout > 0 or q_BTHC.device.type != "cpu":
        return flash_attention(q_BTHC, view, mask, bias, scale, softcap=softcap, dropout=dropout)
    if bias is not None or softcap is not None:
        return tiled_attention(q_BTHC, view, mask, bias, scale, softcap=softcap)
    return scheduled(q_BTHC, view, mask or Full(), scale)
