"""Attention on a GPU by FlexAttention (He 2024), which compiles mask and bias into its kernel: the
kernel contract.

`mask.allows` is its mask_mod as it stands. A bias enters as a matrix where it is small and needs no
gradient. Differs from calling it directly: queries stand at slot `start + t`, and a query that sees
nothing gets lse -inf. Uncompiled it also runs on a CPU, forward only and slowly, which is how the
tests reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.masks.dense import Grid, remembered
from weft.nn.positions.base import Bias

BIAS_NUMBERS = 2**26
"""Numbers of a bias that may be written out as a matrix: 256 MB."""


def flex_fits(q_BTHC: Tensor, view: KVView, bias: Bias | None) -> bool:
    """Whether FlexAttention can run this call: on a GPU, with no bias or one that fits and needs no
    gradient."""
    if q_BTHC.device.type != "cuda":
        return False
    if bias is None:
        return True
    B, T, H, _ = q_BTHC.shape
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in bias.tensors())
    return not needs_grad and B * H * T * view.k_BSKC.shape[1] <= BIAS_NUMBERS


def flex_attention(
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py, without dropout."""
    from torch.nn.attention.flex_attention import AuxRequest

    grid = Grid.of(q_BTHC, view)
    out_BHTU, aux = flex_function(q_BTHC.device.type)(
        *(x.transpose(1, 2) for x in (q_BTHC, view.k_BSKC, view.v_BSKU)),
        score_mod=score_mod(bias, softcap, grid),
        block_mask=None if mask is None else block_mask(mask, grid),
        scale=scale,
        enable_gqa=q_BTHC.shape[2] != view.k_BSKC.shape[2],
        return_aux=AuxRequest(lse=True),
    )
    return out_BHTU.transpose(1, 2), aux.lse


@cache
def flex_function(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled where it is meant to be fast."""
    from torch.nn.attention import flex_attention as flex

    function: Callable[..., Any] = flex.flex_attention
    return torch.compile(function) if device == "cuda" else function


def block_mask(mask: Mask, grid: Grid) -> Any:
    """The mask as FlexAttention's own table of blocks, remembered on the mask object."""
    from torch.nn.attention.flex_attention import create_block_mask

    start_B = torch.tensor(grid.start, device=grid.device).expand(grid.B)

    def allows(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return mask.allows(b, t + start_B[b], s)

    def make() -> Any:
        return create_block_mask(allows, grid.B, None, grid.T, grid.S, device=grid.device)

    return remembered(mask, ("flex", grid), make)


def score_mod(bias: Bias | None, softcap: float | None, grid: Grid) -> Callable[..., Tensor] | None:
    """What happens to a score between the product and the mask."""
    if bias is None and softcap is None:
        return None
    matrix = None
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        matrix = bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors()).expand(grid.B, -1, -1, -1)

    def change(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if matrix is None else score + matrix[b, h, t, s]

    return change
