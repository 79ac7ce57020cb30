"""Masks: descriptions of who may see whom, combined by `&`, `|` and `~`.

The files:
    algebra    And, Or, Not, Full; all_of(a, None, b)
    distance   Causal, Window, Every
    place      Global, Documents, Padding, Prefix, Blocks
    recipes    window, dilated, strided, global_tokens, prefix, random_blocks
    dense      a mask and a Grid -> its matrix, remembered
    ranges     the tables behind the bounds of `place`
"""

from weft.nn.attention.masks.algebra import And, Full, MaskBase, Not, Or, all_of, is_relative
from weft.nn.attention.masks.dense import Dense, Grid, dense, remembered
from weft.nn.attention.masks.distance import Causal, Every, Window
from weft.nn.attention.masks.place import Blocks, Documents, Global, Padding, Prefix
from weft.nn.attention.masks.recipes import (
    dilated,
    global_tokens,
    prefix,
    random_blocks,
    strided,
    window,
)

__all__ = [
    "And",
    "Blocks",
    "Causal",
    "Dense",
    "Documents",
    "Every",
    "Full",
    "Global",
    "Grid",
    "Not",
    "Or",
    "Padding",
    "MaskBase",
    "Prefix",
    "Window",
    "all_of",
    "dense",
    "dilated",
    "global_tokens",
    "is_relative",
    "prefix",
    "random_blocks",
    "remembered",
    "strided",
    "window",
]
