"""ATTENTION: the class of the heads, by the `kind` of the settings."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.registry import pick
from weft.nn.attention.base import AttentionSlot
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.grouped_query import GroupedQueryAttention
from weft.nn.attention.latent import LatentAttention
from weft.nn.attention.layer import Attention
from weft.nn.config import NormConfig

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
