"""Encoder cache: token ids of a whole source -> pages with its cross-attention keys and values.

An encoder attends in both directions, so the rows of a source cannot be shared by prefix, only as a
whole: the key is a hash of all ids. Pages come from the pool that the prefix cache uses too. A
source without a request stays cached until pages are needed, least recently used first evicted.
Retries, beams, samples and equal sentences are encoded once.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

from weft.cache.page_pool import PagePool
from weft.cache.page_tables import num_blocks_for

OWNER = "sources"
"""The name under which this cache holds pages."""


def source_key(ids: Sequence[int], salt: str = "") -> str:
    """A hash of the whole source; `salt` stands for the model, its adapter and its precision."""
    return sha256(salt.encode() + b"\0" + array("q", ids).tobytes()).hexdigest()


class EncodedSource:
    """One source: a page table for each cross-attention group."""

    def __init__(self, key: str, num_tokens: int, page_tables: list[array[int]]) -> None:
        self.key, self.num_tokens, self.page_tables = key, num_tokens, page_tables
        self.uses = 0
        """Requests that read it now."""
        self.last_use = 0
        self.is_written = False
        """False: it is encoded in the current step."""

    @property
    def all_pages(self) -> list[int]:
        return [page for table in self.page_tables for page in table]


class EncoderCache:
    """Sources by key. Each user holds one reference to the pages, the cache holds one more."""

    def __init__(self, pool: PagePool, num_groups: int, keeps_unused: bool = True) -> None:
        """`keeps_unused` False: a source is shared by the requests that run, and then evicted."""
        self.pool, self.num_groups, self.keeps_unused = pool, num_groups, keeps_unused
        self.sources: dict[str, EncodedSource] = {}
        self.unused: OrderedDict[str, EncodedSource] = OrderedDict()

    def num_pages(self, num_tokens: int) -> int:
        """Pages that a source of this length needs."""
        return num_blocks_for(num_tokens, self.pool.page_size) * self.num_groups

    def find(self, key: str) -> EncodedSource | None:
        return self.sources.get(key)

    def add(self, key: str, num_tokens: int, pages: Sequence[int], owner: str) -> EncodedSource:
        """Add a new source in pages that `owner`, its first user, has allocated."""
        assert key not in self.sources, f"source {key[:8]} is there already"
        size = num_blocks_for(num_tokens, self.pool.page_size)
        assert len(pages) == size * self.num_groups, f"{len(pages)} pages for {num_tokens} tokens"
        tables = [array("i", pages[i * size : (i + 1) * size]) for i in range(self.num_groups)]
        source = self.sources[key] = EncodedSource(key, num_tokens, tables)
        self.pool.add_to_cache(pages, OWNER)
        source.uses = 1
        return source

    def acquire(self, source: EncodedSource, owner: str) -> None:
        """Add a user; a source with users cannot be evicted."""
        self.unused.pop(source.key, None)
        source.uses += 1
        self.pool.share(source.all_pages, owner)

    def mark_written(self, source: EncodedSource) -> None:
        """The pages of a source now hold its rows."""
        source.is_written = True
        R = self.pool.page_size
        for table in source.page_tables:
            for block, page in enumerate(table):
                rows = min(R, source.num_tokens - block * R)
                self.pool.emit("write", [page], OWNER, rows)

    def release(self, source: EncodedSource, owner: str) -> None:
        """Remove a user; an unused source stays cached, unless it was never written or unused ones
        are not kept."""
        source.uses -= 1
        assert source.uses >= 0, f"source {source.key[:8]} has {source.uses} users"
        self.pool.free(source.all_pages, owner)
        if source.uses == 0:
            source.last_use = self.pool.next_timestamp()
            self.unused[source.key] = source
            if not (source.is_written and self.keeps_unused):
                self.remove(source)

    def check(self, users: Mapping[str, int]) -> None:
        """Raise an AssertionError unless each source has so many users, by key."""
        assert not users.keys() - self.sources.keys(), "a source in use is not in the cache"
        for key, source in self.sources.items():
            number = users.get(key, 0)
            assert source.uses == number, f"source {key[:8]} has {source.uses} users, not {number}"
            assert (key in self.unused) == (not number), f"source {key[:8]} is unused and in use"
            self.check_pages(source)

    def check_pages(self, source: EncodedSource) -> None:
        number, needed = len(source.all_pages), self.num_pages(source.num_tokens)
        assert number == needed, f"source {source.key[:8]} has {number} pages, not {needed}"

    def recount(self) -> None:
        """No request uses a source any more; those that were not written are forgotten, or all if
        unused ones are not kept."""
        kept = self.sources if self.keeps_unused else {}
        self.sources = {key: one for key, one in kept.items() if one.is_written}
        now = self.pool.next_timestamp()
        for source in self.sources.values():
            self.check_pages(source)
            source.last_use = now if source.uses else source.last_use
            source.uses = 0
        order = sorted(self.sources.values(), key=lambda source: source.last_use)
        self.unused = OrderedDict((source.key, source) for source in order)

    def clear(self) -> None:
        """Forget all sources; their pages are not released."""
        self.sources, self.unused = {}, OrderedDict()

    def oldest_use(self) -> int | None:
        """Last use of the next victim (timestamp of the pool); None: nothing to evict."""
        first = next(iter(self.unused.values()), None)
        return None if first is None else first.last_use

    def evict_oldest(self, number: int) -> int:
        """Evict the least recently used source as a whole; return how many pages became free."""
        return self.remove(next(iter(self.unused.values())))

    def remove(self, source: EncodedSource) -> int:
        del self.unused[source.key], self.sources[source.key]
        return self.pool.evict(source.all_pages, OWNER)
