"""Sources of encoder-decoder requests: ids of a whole source -> its cross-attention pages.

An encoder looks in both directions, so a source's rows cannot be shared by prefix, only as a whole:
the key is a hash of all ids. Pages come from the same pool as everything else. A source that no
request uses stays until room is needed, least recently used first. Retries, beams, samples and
equal sentences are encoded once.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

from weft.cache.pages import PagePool
from weft.cache.tables import blocks_for

OWNER = "sources"
"""The name under which this cache holds pages."""


def source_key(ids: Sequence[int], salt: str = "") -> str:
    """A hash of the whole source; `salt` stands for the model, its adapter and its precision."""
    return sha256(salt.encode() + b"\0" + array("q", ids).tobytes()).hexdigest()


class Source:
    """One source: a page table for each stripe of cross-attention."""

    def __init__(self, key: str, num_tokens: int, pages: list[array[int]]) -> None:
        self.key, self.num_tokens, self.pages = key, num_tokens, pages
        self.uses = 0
        """Requests that read it now."""
        self.last_use = 0
        self.is_written = False
        """False: planned to be encoded in the step that is under way."""

    @property
    def all_pages(self) -> list[int]:
        return [page for table in self.pages for page in table]


class SourceCache:
    """Sources by key. Each user holds the pages once, the cache holds them once."""

    def __init__(self, pool: PagePool, num_stripes: int) -> None:
        self.pool, self.num_stripes = pool, num_stripes
        self.sources: dict[str, Source] = {}
        self.unused: OrderedDict[str, Source] = OrderedDict()

    def num_pages(self, num_tokens: int) -> int:
        """Pages that a source of this length needs."""
        return blocks_for(num_tokens, self.pool.page_size) * self.num_stripes

    def find(self, key: str) -> Source | None:
        return self.sources.get(key)

    def add(self, key: str, num_tokens: int, pages: Sequence[int], owner: str) -> Source:
        """Hold a new source in pages that `owner`, its first user, has allocated."""
        assert key not in self.sources, f"source {key[:8]} is there already"
        size = blocks_for(num_tokens, self.pool.page_size)
        assert len(pages) == size * self.num_stripes, f"{len(pages)} pages for {num_tokens} tokens"
        tables = [array("i", pages[i * size : (i + 1) * size]) for i in range(self.num_stripes)]
        source = self.sources[key] = Source(key, num_tokens, tables)
        self.pool.keep(pages, OWNER)
        source.uses = 1
        return source

    def acquire(self, source: Source, owner: str) -> None:
        """One more user; the source cannot be evicted while it has one."""
        self.unused.pop(source.key, None)
        source.uses += 1
        self.pool.share(source.all_pages, owner)

    def written(self, source: Source) -> None:
        """The rows of a source are in its pages now."""
        source.is_written = True
        R = self.pool.page_size
        for table in source.pages:
            for block, page in enumerate(table):
                rows = min(R, source.num_tokens - block * R)
                self.pool.tell("write", [page], OWNER, rows)

    def release(self, source: Source, owner: str) -> None:
        """A user is done; the source stays until room is needed. One never written goes."""
        source.uses -= 1
        assert source.uses >= 0, f"source {source.key[:8]} has {source.uses} users"
        self.pool.free(source.all_pages, owner)
        if source.uses == 0:
            source.last_use = self.pool.tick()
            self.unused[source.key] = source
            if not source.is_written:
                self.remove(source)

    def oldest(self) -> int | None:
        """When the next victim was last used (the pool's clock); None: nothing to evict."""
        first = next(iter(self.unused.values()), None)
        return None if first is None else first.last_use

    def evict_oldest(self, number: int) -> int:
        """Evict the source used longest ago as a whole; how many pages are free now."""
        return self.remove(next(iter(self.unused.values())))

    def remove(self, source: Source) -> int:
        del self.unused[source.key], self.sources[source.key]
        return self.pool.drop(source.all_pages, OWNER)
