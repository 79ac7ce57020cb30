"""Copies of pages, as a plan has them or as beams fork in its passes, in all places of a store.

In their order: a page that was freed in the middle of planning may be read by one copy and written
by a later one, never the other way round. Compiled, only the rows that hold something are moved,
once; torch moves whole pages, twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.cache.kv_store import KVStore
from weft.cache.page_tables import PageCopy
from weft.native.kernels import copy_rows


def copy_pages(store: KVStore, copies: Sequence[PageCopy] | Any) -> None:
    """What a fork is about to write into becomes its own. `copies`: also an array of such rows."""
    copies_N3 = np.ascontiguousarray(copies, dtype=np.int64)
    for rows in store.rows:
        for pages in rows.values():
            copy_rows(pages, copies_N3)
