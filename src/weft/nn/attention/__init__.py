"""Attention layers: x_BTD -> y_BTD. The table ATTENTION maps `kind` to the class of the heads.

base             contracts: Mask, Kernel, AttentionCall, AttentionContext, AttentionSlot
config           settings: heads, pattern, kernel
layer            the base class: cache, positions, choice of the kernel
grouped_query    MHA, GQA, MQA
latent           MLA, expanded and absorbed
paged_attention  variable-length attention over the pages of a KV cache
masks/           which query may attend to which key, as descriptions
kernels/         reference, flash, short, tiled, sparse, flex
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.registry import pick
from weft.nn.attention.base import AttentionSlot
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.grouped_query import GroupedQueryAttention
from weft.nn.attention.latent import LatentAttention
from weft.nn.attention.layer import Attention
from weft.nn.norm import NormConfig

__all__ = ["ATTENTION", "build_attention"]

ATTENTION: dict[str, Callable[[AttentionConfig, int, NormConfig, AttentionSlot], Attention]] = {
    "mha": GroupedQueryAttention,
    "gqa": GroupedQueryAttention,
    "mqa": GroupedQueryAttention,
    "mla": LatentAttention,
}


def build_attention(
    config: AttentionConfig, width: int, norm: NormConfig, slot: AttentionSlot
) -> Attention:
    """The attention layer that `config.kind` selects."""
    return pick(ATTENTION, config.kind, "kind of attention")(config, width, norm, slot)
