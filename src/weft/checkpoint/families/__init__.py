"""The table of checkpoint families. A new one is a file in this folder and a line here."""

from __future__ import annotations

from weft.checkpoint.families import (
    bart,
    bert,
    deepseek_v2,
    deepseek_v3,
    fairseq,
    gemma3,
    gpt2,
    llama,
    marian,
    mistral,
    qwen2,
    qwen3,
    t5,
)
from weft.checkpoint.families.base import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma3.FAMILY,
    deepseek_v2.FAMILY,
    deepseek_v3.FAMILY,
    gpt2.FAMILY,
    bert.FAMILY,
    t5.FAMILY,
    bart.FAMILY,
    marian.FAMILY,
    fairseq.FAMILY,
)
"""In the order in which they are tried for a model that was not read from any of them."""
