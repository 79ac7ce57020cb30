"""The contract of prefix caches: token ids -> pages that hold their rows already.

    match    the longest cached prefix, locked           peek   its length only, nothing locked
    extend   a sequence's full pages enter the cache     release   the lock goes, the pages stay
    evict    the least recently used pages go

A match is a whole number of pages and at most len(tokens) - 1 long: the last token is always run,
or there would be no logits. A namespace (a salt, a source) keeps its tokens apart from all others.
`NoPrefixCache` is the first of the three kinds; radix.py and hashed.py are the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from weft.cache.pages import PagePool
from weft.cache.tables import Column, Tables
from weft.cache.windows import WindowPages

OWNER = "prefix"
"""The name under which a prefix cache holds pages."""


@dataclass(eq=False)
class Match:
    """A locked prefix: its pages stay valid until `release`. `extend` makes it longer."""

    length: int
    """Tokens; a multiple of the page size."""
    columns: list[Column]
    """The cached pages at the time of the match, by block; for `Tables.adopt`."""
    place: Any = None
    """Where the cache finds the prefix again; its own business."""


@dataclass(eq=False)
class Probe:
    """Tokens that are looked up again and again while their request waits."""

    tokens: list[int]
    namespace: str
    version: int = -1
    length: int = 0
    """What the last look found, and the version of the cache at that time."""
    keys: list[bytes] = field(default_factory=list)
    """Hashes of the leading blocks, as far as they were needed (hashed.py)."""
    place: Any = None
    place_end: int = 0
    """The last node that was found as a whole, and where it ended then (radix.py)."""


class Exported(NamedTuple):
    """One cached run of tokens: a page for each block, by stripe; null where there is none."""

    namespace: str
    tokens: list[int]
    columns: list[Column]
    last_use: int
    """On the pool's clock."""


class PrefixCache(Protocol):
    """What the scheduler asks of a prefix cache. Made from (pool, windows of the stripes)."""

    version: int
    """Changes whenever a match may have become longer or shorter."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None: ...

    def peek(self, probe: Probe) -> int:
        """Length of the longest usable cached prefix. Locks nothing and refreshes no age."""

    def match(self, tokens: Sequence[int], namespace: str) -> Match:
        """The longest usable cached prefix, locked. The caller's tables `adopt` it at once."""

    def known(self, tokens: Sequence[int], namespace: str) -> list[Column]:
        """The columns of the longest cached prefix, up to the last token, for a look from outside:
        nothing is locked, no age refreshed. Where a window has passed, pages may be missing."""

    def extend(self, match: Match, tokens: Sequence[int], tables: Tables, num_blocks: int) -> None:
        """The first `num_blocks` pages of a sequence are full: the cache holds them from now on,
        and the match locks them. Where it held equal ones the tables are rewritten to those."""

    def fork(self, match: Match) -> Match:
        """A second lock on the same prefix."""

    def passed(self, pages: Iterable[int]) -> None:
        """Tables gave back pages that their windows have passed."""

    def release(self, match: Match, pages: Iterable[int]) -> None:
        """Drop the lock of a sequence whose tables gave back all their pages."""

    def oldest(self) -> int | None:
        """When the next victim was last used (the pool's clock); None: nothing to evict."""

    def evict_oldest(self, number: int) -> int:
        """Evict from the least recently used place, up to `number` pages; how many were freed."""

    def columns(self) -> Iterator[Column]:
        """All columns that are held, for audits."""

    def export(self) -> list[Exported]:
        """Every cached run, for saving; saved.py restores them."""


class NoPrefixCache:
    """Keeps nothing: every prompt is computed as a whole."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.version = 0

    def peek(self, probe: Probe) -> int:
        return 0

    def match(self, tokens: Sequence[int], namespace: str) -> Match:
        return Match(0, [])

    def known(self, tokens: Sequence[int], namespace: str) -> list[Column]:
        return []

    def extend(self, match: Match, tokens: Sequence[int], tables: Tables, num_blocks: int) -> None:
        """Nothing is held."""

    def fork(self, match: Match) -> Match:
        return Match(0, [])

    def passed(self, pages: Iterable[int]) -> None:
        """Nothing is held."""

    def release(self, match: Match, pages: Iterable[int]) -> None:
        """Nothing is held."""

    def oldest(self) -> int | None:
        return None

    def evict_oldest(self, number: int) -> int:
        return 0

    def columns(self) -> Iterator[Column]:
        return iter(())

    def export(self) -> list[Exported]:
        return []


def settle(held: Column, tables: Tables, block: int, windows: WindowPages) -> None:
    """The cache has this block already: one copy of each page stays.

    Both have a page: the table takes the cache's and its own goes. Only the table has one (the
    cache's was a window's, and evicted): the cache keeps it. Only the cache: the table has passed.
    """
    for stripe, page in enumerate(held):
        mine = tables.pages[stripe][block]
        if page and mine and page != mine:
            tables.replace(stripe, block, page)
        elif mine and not page:
            held[stripe] = mine
            tables.pool.keep([mine], OWNER)
            windows.add(held)


def block_limit(num_tokens: int, page_size: int) -> int:
    """Blocks that a match may have: the last token is always left to be run."""
    return max(0, num_tokens - 1) // page_size
