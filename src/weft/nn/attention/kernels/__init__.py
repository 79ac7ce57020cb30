"""Kernels: attend(kernel, q, view, mask, bias, scale) -> out, lse. The contract is in ../base.py.

The table:
    reference  as in the paper; shows its weights
    flash      never stores T x S scores: fused, scheduled or tiled, whichever fits
    sparse     computes only tiles with work
    auto       flash, or sparse where the mask leaves little work

What they are made of:
    fused      torch's kernel with its corners rounded
    scheduled  the fused kernel on tiles with work: parts -> tiles -> schedule, on rows
    tiled      a running softmax, for any bias
    short      training on short sequences
    merge      joins partial results by their lse
    flex       FlexAttention, on a GPU
"""

from __future__ import annotations

from torch import Tensor

from weft.core.choices import pick
from weft.core.kv_spec import KVView
from weft.nn.attention.base import Kernel, Mask
from weft.nn.attention.kernels.auto import auto_attention
from weft.nn.attention.kernels.flash import flash_attention
from weft.nn.attention.kernels.merge import merge
from weft.nn.attention.kernels.reference import attention_weights, reference_attention
from weft.nn.attention.kernels.sparse import sparse_attention
from weft.nn.positions.base import Bias

KERNELS: dict[str, Kernel] = {
    "auto": auto_attention,
    "reference": reference_attention,
    "flash": flash_attention,
    "sparse": sparse_attention,
}

__all__ = ["KERNELS", "attend", "attention_weights", "choose_kernel", "merge"]


def choose_kernel(name: str) -> Kernel:
    """The kernel of that name; an error that lists them when there is none."""
    return pick(KERNELS, name, "attention kernel")


def attend(
    kernel: str,
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT) by the kernel of that name."""
    run = choose_kernel(kernel)
    return run(q_BTHC, view, mask, bias, scale, softcap=softcap, dropout=dropout)
