"""The table of checkpoint families. A new one is a file in this folder and a line here."""

from __future__ import annotations

from weft.checkpoint.families import llama
from weft.checkpoint.families.base import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY,)
"""In the order in which they are tried for a model that was not read from any of them."""
