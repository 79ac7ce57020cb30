"""The index of a cache file: the tokens or the source that each page belongs to <-> bytes.

Page n of a file is the n-th row of its tensors, counted from 1; 0 is a page that a sliding window
has freed. A run repeats the prefix that it shares with others, so the index is compressed JSON.

`unpack_index` trusts nothing, because a checksum proves only that the file is as it was written: it
bounds the decompressed size, and checks all types, lengths and page numbers, and that each page
belongs to one place. Its result can be restored into a cache of the same layout without an error.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_pool import NULL_PAGE
from weft.cache.page_tables import num_blocks_for
from weft.cache.prefix_cache import CachedRun
from weft.cache.snapshot import CacheSnapshot, SavedSource

MAX_TOKEN = 2**31 - 1
MAX_TIME = 2**62


class CacheIndexError(Exception):
    """The index cannot be used; the message completes 'is not a complete cache file (...)'."""


@dataclass(frozen=True)
class IndexLayout:
    """What an index must agree with: the caches it is restored into, and the pages of the file."""

    page_size: int
    windows: Sequence[int | None]
    """Sliding windows of the self-attention groups; pages of groups without one are complete."""
    num_cross_groups: int
    num_pages: int
    max_bytes: int
    """Largest size of the decompressed index."""

    @classmethod
    def of(cls, kv_cache: KVCacheManager, num_pages: int, max_bytes: int) -> IndexLayout:
        cross = len(kv_cache.layout.cross_groups)
        return cls(kv_cache.pool.page_size, kv_cache.windows, cross, num_pages, max_bytes)


def pack_index(contents: CacheSnapshot, pages: list[int]) -> Tensor:
    """Runs and sources as bytes, with the pages of the file in the order of `pages`."""
    numbered = contents.renumbered({page: number for number, page in enumerate(pages, 1)})
    text = json.dumps({"runs": numbered.runs, "sources": numbered.sources})
    return torch.frombuffer(bytearray(zlib.compress(text.encode(), level=1)), dtype=torch.uint8)


def unpack_index(packed: memoryview, layout: IndexLayout) -> CacheSnapshot:
    """The snapshot of an index. Raises an CacheIndexError for one that does not fit the layout."""
    try:
        values = json.loads(decompress(packed, layout.max_bytes))
    except (ValueError, zlib.error, RecursionError) as error:
        raise CacheIndexError(f"its index cannot be read: {error}") from None
    check(isinstance(values, dict) and values.keys() == {"runs", "sources"}, "it has other keys")
    runs, sources = values["runs"], values["sources"]
    check(isinstance(runs, list) and isinstance(sources, list), "runs or sources are no lists")
    owners = PageOwners(layout)
    return CacheSnapshot(
        [owners.run(entry) for entry in runs], [owners.source(entry) for entry in sources]
    )


def decompress(packed: memoryview, max_bytes: int) -> bytes:
    """zlib.decompress with a limit: a kilobyte can become a megabyte."""
    stream = zlib.decompressobj()
    text = stream.decompress(packed, max_bytes)
    check(not stream.unconsumed_tail, f"it has more than {max_bytes} bytes")
    check(stream.eof, "it is truncated")
    return text


def check(condition: bool, problem: str) -> None:
    if not condition:
        raise CacheIndexError(f"its index is invalid: {problem}")


class PageOwners:
    """Checks the entries of an index one after another, and which place each page belongs to."""

    def __init__(self, layout: IndexLayout) -> None:
        self.layout = layout
        self.prefixes: dict[tuple[object, ...], int] = {}
        """Number of each prefix of whole blocks: (number of the prefix before, *tokens)."""
        self.owner: dict[int, tuple[object, ...]] = {}
        self.page: dict[tuple[object, ...], int] = {}
        self.keys: set[str] = set()

    def run(self, entry: Any) -> CachedRun:
        """A checked run: whole blocks, and a page per group, shared with runs of equal prefix."""
        check(isinstance(entry, list) and len(entry) == 4, "a run has four fields")
        namespace, tokens, blocks, last_use = entry
        check(is_text(namespace), "the namespace of a run is no text")
        check(are_ints(tokens, 0, MAX_TOKEN), "the tokens of a run are no ids")
        check(isinstance(blocks, list) and len(blocks) > 0, "a run has no pages")
        check(len(tokens) == len(blocks) * self.layout.page_size, "a run has unequal lengths")
        check(is_int(last_use, 0, MAX_TIME), "the last use of a run is no time")
        for prefix, pages in zip(self.numbered(namespace, tokens), blocks, strict=True):
            check(are_ints(pages, NULL_PAGE, self.layout.num_pages), "a page is not in the file")
            check(len(pages) == len(self.layout.windows), "a block has a page for each group")
            for group, (page, window) in enumerate(zip(pages, self.layout.windows, strict=True)):
                check(page != NULL_PAGE or window is not None, "a page is missing")
                self.claim(page, ("run", prefix, group))
        return CachedRun(namespace, tokens, blocks, last_use)

    def numbered(self, namespace: str, tokens: list[int]) -> Iterator[int]:
        """The number of the prefix that ends with each block."""
        R = self.layout.page_size
        key: tuple[object, ...] = ("namespace", namespace)
        for start in range(0, len(tokens), R):
            before = self.prefixes.setdefault(key, len(self.prefixes))
            key = (before, *tokens[start : start + R])
            yield self.prefixes.setdefault(key, len(self.prefixes))

    def source(self, entry: Any) -> SavedSource:
        """A checked source: complete tables, whose pages nothing else has."""
        check(isinstance(entry, list) and len(entry) == 4, "a source has four fields")
        key, num_tokens, tables, last_use = entry
        check(is_text(key) and key not in self.keys, "a source has no key of its own")
        check(is_int(num_tokens, 1, MAX_TOKEN), "the length of a source is no length")
        check(is_int(last_use, 0, MAX_TIME), "the last use of a source is no time")
        num_blocks = num_blocks_for(num_tokens, self.layout.page_size)
        check(isinstance(tables, list), "a source has no tables")
        check(len(tables) == self.layout.num_cross_groups, "a source has a table for each group")
        for group, table in enumerate(tables):
            check(are_ints(table, 1, self.layout.num_pages), "a page is not in the file")
            check(len(table) == num_blocks, "a table does not cover its source")
            for block, page in enumerate(table):
                self.claim(page, ("source", key, group, block))
        self.keys.add(key)
        return SavedSource(key, num_tokens, tables, last_use)

    def claim(self, page: int, place: tuple[object, ...]) -> None:
        """A page belongs to one place, and a place has one page."""
        if page != NULL_PAGE:
            is_only = self.owner.setdefault(page, place) == place
            check(is_only and self.page.setdefault(place, page) == page, "a page is in two places")


def is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def are_ints(values: object, low: int, high: int) -> bool:
    """Whether this is a list of int in low..high."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        return False
    return not values or (min(values) >= low and max(values) <= high)


def is_text(value: object) -> bool:
    """Whether this is a str without half surrogate pairs, which cannot be hashed."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)
