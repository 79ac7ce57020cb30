"""Which implementation computes a call: the entries flash, sparse and auto of the kernel table.

    flash    short.py             short sequences in training: storing the weights is faster
             flash.py             torch's fused kernel: no mask, causal, or small masks and biases
             sparse/kernel.py     a larger mask: the fused kernel on the tiles that are not empty
             tiled.py             softcap, a bias that needs gradients or is large: online softmax
             reference.py         the same with few scores, where storing them is cheaper; dropout
             flex.py              on a GPU
    sparse   sparse/kernel.py; tiled.py with a bias or softcap; flash for fewer queries than a tile
    auto     sparse for long calls whose mask allows few pairs, else flash

The choice depends on sizes, settings and the mask, never on values; all ways are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.nn.attention.base import DenseCall
from weft.nn.attention.kernels.flash import fused_attention, materialize_mask, needs_no_matrix
from weft.nn.attention.kernels.flex import flex_attention, flex_fits
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.kernels.sparse import tiles
from weft.nn.attention.kernels.sparse.kernel import scheduled_attention
from weft.nn.attention.kernels.sparse.schedule import schedule_of
from weft.nn.attention.kernels.tiled import tiled_attention
from weft.nn.attention.masks.dense import Grid
from weft.nn.positions.base import Bias

MAX_MATRIX = 2**22
"""Elements of a mask or bias that may be stored as a matrix: 16 MB."""
MAX_STORED_SCORES = 2**22
"""Scores that may be stored where tiles would compute them twice: 16 MB."""
MIN_PAIRS = 2**20
"""Pairs of one row of the batch from which tiles can pay off: 1,024 queries by 1,024 keys."""
MAX_DENSITY = 0.6
"""Share of all pairs up to which they do."""


def flash_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    q_BTHC, bias = call.q_BTHC, call.bias
    if call.dropout > 0:
        return reference_attention(call)
    is_cpu = q_BTHC.device.type == "cpu"
    if not is_cpu and flex_fits(call):
        return flex_attention(call)
    grid = Grid.of(q_BTHC, call.kv)
    if call.softcap is not None or not is_cpu or not can_materialize(bias, q_BTHC, grid):
        is_small = grid.pairs * q_BTHC.shape[2] <= MAX_STORED_SCORES
        return reference_attention(call) if is_small else tiled_attention(call)
    if not needs_no_matrix(call.mask, bias, grid) and grid.pairs > MAX_MATRIX:
        return scheduled_attention(call)
    return fused_attention(call, materialize_mask(call, grid))


def sparse_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    is_short = call.q_BTHC.shape[1] < tiles.TILE
    if is_short or call.dropout > 0 or call.q_BTHC.device.type != "cpu":
        return flash_attention(call)
    if call.bias is not None or call.softcap is not None:
        return tiled_attention(call)
    return scheduled_attention(call)


def auto_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    use_tiles = call.bias is None and is_sparse(call)
    return sparse_attention(call) if use_tiles else flash_attention(call)


def can_materialize(bias: Bias | None, q_BTHC: Tensor, grid: Grid) -> bool:
    """Whether the bias may become a matrix: it is small and needs no gradient."""
    if bias is None:
        return True
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in bias.tensors())
    return not needs_grad and grid.pairs * q_BTHC.shape[2] <= MAX_MATRIX


def is_sparse(call: DenseCall) -> bool:
    """Whether the mask excludes enough of a long call."""
    if call.mask is None or call.q_BTHC.shape[1] * call.kv.k_BSKC.shape[1] < MIN_PAIRS:
        return False
    grid = Grid.of(call.q_BTHC, call.kv)
    if needs_no_matrix(call.mask, None, grid):
        return False
    return schedule_of(call.mask, grid).density < MAX_DENSITY
