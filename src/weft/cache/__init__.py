"""Caches: they store the rows that attention layers declare (core/kv.py) and know nothing else
about them. Pages are numbers here; only contiguous.py and the engine's runner hold tensors.

contiguous  the plain cache: one tensor a layer
layout      layers -> stripes, which have page tables of their own
pages       PagePool: reference counts of all pages
tables      Tables: the pages of one sequence; fork, copy on write, windows
prefix      the contract of prefix caches, and `none`
radix       a tree of token runs (leaves: its nodes and the queue of victims)
hashed      chained hashes of blocks
windows     what window stripes change about prefixes
sources     whole sources of encoder-decoder requests
memory      one budget for all of them
events      every change as a stream, and its replay
saved       prefixes and sources across a restart
reading     a sequence read again, its pages left alone
"""

from __future__ import annotations

from weft.cache.hashed import HashCache
from weft.cache.prefix import NoPrefixCache, PrefixCache
from weft.cache.radix import RadixCache

__all__ = ["PREFIX_CACHES"]

PREFIX_CACHES: dict[str, type[PrefixCache]] = {
    "none": NoPrefixCache,
    "hash": HashCache,
    "radix": RadixCache,
}
