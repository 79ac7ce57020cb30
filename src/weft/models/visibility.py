"""Who may see whom in one pass: the batch and the pattern -> one mask description for all layers.

Differs from the textbook: a causal stack needs no padding mask. Padding is on the right, so every
padded key lies after every real query, and being causal hides it already. That keeps the plain
causal case, which kernels do best.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

import torch

from weft.core.forward_batch import ForwardBatch
from weft.nn.attention.base import Mask
from weft.nn.attention.config import PatternConfig
from weft.nn.attention.masks import (
    Blocks,
    Causal,
    Documents,
    Global,
    MaskBase,
    Padding,
    Prefix,
    Window,
    dilated,
    strided,
)


def self_mask(batch: ForwardBatch, pattern: PatternConfig | None, is_causal: bool) -> Mask | None:
    """The mask of self-attention; None where everyone sees everyone."""
    masks: list[MaskBase] = []
    if is_causal:
        masks.append(Causal() if batch.prefix_B is None else Causal() | Prefix(batch.prefix_B))
    elif batch.lengths_B is not None:
        masks.append(Padding(batch.lengths_B))
    if pattern is not None and pattern.kind != "full":
        masks.append(pattern_mask(pattern))
    if batch.documents_BT is not None:
        masks.append(Documents(batch.documents_BT))
    return reduce(and_, masks) if masks else None


def memory_mask(batch: ForwardBatch) -> Mask | None:
    """The mask of cross-attention: the real tokens of the source."""
    return None if batch.memory_lengths_B is None else Padding(batch.memory_lengths_B)


def pattern_mask(pattern: PatternConfig) -> MaskBase:
    if pattern.kind == "window":
        return Window(pattern.window)
    if pattern.kind == "dilated":
        return dilated(pattern.window, pattern.step)
    if pattern.kind == "strided":
        return strided(pattern.stride)
    if pattern.kind == "global":
        return Window(pattern.window) | Global(pattern.global_tokens)
    assert pattern.kind == "blocks" and pattern.blocks, f"no mask for pattern {pattern.kind}"
    return Blocks(torch.tensor(pattern.blocks, dtype=torch.bool), pattern.block_size)
