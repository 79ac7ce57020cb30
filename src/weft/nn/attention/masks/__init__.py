"""Masks: descriptions of which query may attend to which key, combined by `&`, `|` and `~`.

algebra    And, Or, Not, Full; all_of(a, None, b)
kinds      Causal, Window, Strided, Global, Documents, Padding, Prefix, Blocks; dilated, strided
dense      a mask and a Grid -> its matrix, cached on the mask
"""

from weft.nn.attention.masks.algebra import (
    And,
    Full,
    MaskBase,
    Not,
    Or,
    all_of,
    conjuncts,
    depends_on_distance,
)
from weft.nn.attention.masks.dense import Dense, Grid, cached_on_mask, dense
from weft.nn.attention.masks.kinds import (
    Blocks,
    Causal,
    Documents,
    Global,
    Padding,
    Prefix,
    Strided,
    Window,
    dilated,
    strided,
)

__all__ = [
    "And",
    "Blocks",
    "Causal",
    "Dense",
    "Documents",
    "Full",
    "Global",
    "Grid",
    "MaskBase",
    "Not",
    "Or",
    "Padding",
    "Prefix",
    "Strided",
    "Window",
    "all_of",
    "cached_on_mask",
    "conjuncts",
    "dense",
    "depends_on_distance",
    "dilated",
    "strided",
]
