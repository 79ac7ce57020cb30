"""KV caches: they store the rows that attention layers declare (core/kv_spec.py).

Pages are integers in this package; only kv_store holds tensors.

page_pool         PagePool: page ids with reference counts
page_tables       PageTables of one sequence: fork, copy-on-write, sliding windows
kv_groups         layers -> KV cache groups, each with its own page table
kv_store          KVStore: the tensors of all pages, and KVCache handles for one forward pass
prefix_cache      the contract of prefix caches, the `none` cache, and helpers for sliding windows
radix_cache       prefix cache as a radix tree of token runs (RadixAttention)
hash_cache        prefix cache by chained hashes of pages (vLLM)
encoder_cache     cross-attention pages of encoded sources
kv_cache_manager  KVCacheManager: one page budget for the sequences and all caches
snapshot          contents of the caches, saved and restored across restarts
events            every change of pages and of the radix tree as an event stream
replay            ReplayedState: pages and tree from a snapshot and the events since
"""

from __future__ import annotations

from weft.cache.hash_cache import HashCache
from weft.cache.prefix_cache import NoPrefixCache, PrefixCache
from weft.cache.radix_cache import RadixCache

__all__ = ["PREFIX_CACHES"]

PREFIX_CACHES: dict[str, type[PrefixCache]] = {
    "none": NoPrefixCache,
    "hash": HashCache,
    "radix": RadixCache,
}
