"""Attention on a GPU by FlexAttention (He 2024), which compiles mask and bias into its kernel.

`mask.allows` is used as its mask_mod. A bias is passed as a matrix where it is small and needs no
gradient. Differs from calling it directly: queries are at slots `start + t`, and a query without
any allowed key gets lse -inf. Uncompiled it also runs on a CPU, forward only and slowly, which is
how the tests use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.nn.attention.base import DenseCall, Mask
from weft.nn.attention.masks.dense import Grid, cached_on_mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MAX_BIAS = 2**26
"""Elements of a bias that may be stored as a matrix: 256 MB."""


def flex_fits(call: DenseCall) -> bool:
    """Whether FlexAttention can compute this call: on a GPU, without a bias or with one that fits
    and needs no gradient."""
    if call.q_BTHC.device.type != "cuda":
        return False
    if call.bias is None:
        return True
    B, T, H, _ = call.q_BTHC.shape
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in call.bias.tensors())
    return not needs_grad and B * H * T * call.kv.k_BSKC.shape[1] <= MAX_BIAS


def flex_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py, without dropout."""
    from torch.nn.attention.flex_attention import AuxRequest

    q_BTHC, kv = call.q_BTHC, call.kv
    check_shapes(q_BTHC=q_BTHC, k_BSKC=kv.k_BSKC, v_BSKU=kv.v_BSKU)
    grid = Grid.of(q_BTHC, kv)
    out_BHTU, aux = flex_function(q_BTHC.device.type)(
        *(x.transpose(1, 2) for x in (q_BTHC, kv.k_BSKC, kv.v_BSKU)),
        score_mod=score_mod(call, grid),
        block_mask=None if call.mask is None else block_mask(call.mask, grid),
        scale=call.scale,
        enable_gqa=q_BTHC.shape[2] != kv.k_BSKC.shape[2],
        return_aux=AuxRequest(lse=True),
    )
    return out_BHTU.transpose(1, 2), aux.lse


@cache
def flex_function(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled on a GPU."""
    from torch.nn.attention import flex_attention as flex

    function: Callable[..., Any] = flex.flex_attention
    return torch.compile(function) if device == "cuda" else function


def block_mask(mask: Mask, grid: Grid) -> BlockMask:
    """The mask as FlexAttention's BlockMask, cached on the mask object."""
    from torch.nn.attention.flex_attention import create_block_mask

    start_B = torch.tensor(grid.start, device=grid.device).expand(grid.B)

    def mask_mod(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return mask.allows(b, t + start_B[b], s)

    def create() -> BlockMask:
        return create_block_mask(mask_mod, grid.B, None, grid.T, grid.S, device=grid.device)

    return cached_on_mask(mask, ("flex", grid), create)


def score_mod(call: DenseCall, grid: Grid) -> Callable[..., Tensor] | None:
    """Softcap and bias as FlexAttention's score_mod; None without both."""
    bias, softcap = call.bias, call.softcap
    if bias is None and softcap is None:
        return None
    matrix = None
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        matrix = bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors()).expand(grid.B, -1, -1, -1)

    def modify(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if matrix is None else score + matrix[b, h, t, s]

    return modify
