"""Attention kernels: call -> out, lse. The contract is in ../base.py.

reference  scaled dot-product attention as in the paper; returns its weights; merging by lse
flash      torch's fused kernel, with gradients of lse and values of any size
short      training on short sequences, with stored weights
tiled      online softmax over tiles, for any bias and softcap
sparse/    the fused kernel on the tiles that a mask does not leave empty
flex       FlexAttention, on a GPU
dispatch   flash, sparse and auto: which of these computes a call
"""

from __future__ import annotations

from weft.core.registry import pick
from weft.nn.attention.base import Kernel
from weft.nn.attention.kernels.dispatch import auto_attention, flash_attention, sparse_attention
from weft.nn.attention.kernels.reference import attention_weights, merge, reference_attention

KERNELS: dict[str, Kernel] = {
    "auto": auto_attention,
    "reference": reference_attention,
    "flash": flash_attention,
    "sparse": sparse_attention,
}

__all__ = ["KERNELS", "attention_weights", "choose_kernel", "merge"]


def choose_kernel(name: str) -> Kernel:
    """The kernel of that name; an error that lists them if there is none."""
    return pick(KERNELS, name, "attention kernel")
