"""The table of head kinds, and the one function that builds an attention layer from settings."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.choices import pick
from weft.nn.attention.heads import GroupedAttention
from weft.nn.attention.latent import LatentAttention
from weft.nn.attention.layer import Attention, Place
from weft.nn.attention.settings import AttentionConfig
from weft.nn.norm import NormConfig

HEADS: dict[str, Callable[[AttentionConfig, int, NormConfig, Place], Attention]] = {
    "mha": GroupedAttention,
    "gqa": GroupedAttention,
    "mqa": GroupedAttention,
    "mla": LatentAttention,
}


def build_attention(
    config: AttentionConfig, width: int, norm: NormConfig, place: Place
) -> Attention:
    return pick(HEADS, config.kind, "kind of heads")(config, width, norm, place)
