"""The contract of prefix caches: token ids -> pages that already hold their keys and values.

    match    the longest cached prefix, locked           peek     only its length, nothing locked
    extend   full pages of a sequence enter the cache    release  unlock; the pages stay cached
    evict    the least recently used pages are freed
    recount  all matches are void: locks and eviction order are rebuilt from the cached blocks

A match is a whole number of pages and at most len(tokens) - 1 tokens long: the last token is always
computed, because its logits are needed. Tokens of different namespaces (a salt, a source) are never
shared. `NoPrefixCache` is the first of the three kinds; radix_cache.py and hash_cache.py are the
others. `WindowPages` implements what both do for sliding windows: a query after n cached blocks
reads only the last window - 1 slots of a window group, so a prefix is usable when just those pages
are there, and the cache may evict the others one by one (a null page id, or tombstone) while the
pages of full-attention groups stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from weft.cache.events import PREFIX
from weft.cache.page_pool import NULL_PAGE, PagePool
from weft.cache.page_tables import PageIds, PageTables, first_readable_block
from weft.cache.replay import TreeNode

OWNER = PREFIX
"""The name under which a prefix cache holds pages."""


@dataclass(eq=False)
class PrefixMatch:
    """A locked prefix: its pages stay valid until `release`. `extend` makes it longer."""

    length: int
    """Tokens; a multiple of the page size."""
    block_pages: list[PageIds]
    """The cached pages at the time of the match, by block; for `PageTables.adopt`."""
    handle: object = None
    """Position in the cache that made the match; private to that cache."""


@dataclass(eq=False)
class PrefixQuery:
    """The tokens of a waiting request, looked up repeatedly, with what earlier look-ups found."""

    tokens: list[int]
    namespace: str
    version: int = -1
    length: int = 0
    """Result of the last look-up, and the version of the cache at that time."""
    keys: list[bytes] = field(default_factory=list)
    """Hashes of the leading blocks, as far as they were needed (hash_cache.py)."""
    node: object = None
    node_end: int = 0
    """The last node that matched completely, and where it ended then (radix_cache.py)."""


class CachedRun(NamedTuple):
    """One cached run of tokens with the pages of its blocks; null where a page is missing."""

    namespace: str
    tokens: list[int]
    block_pages: list[PageIds]
    last_use: int
    """Timestamp of the pool."""


class PrefixCache(Protocol):
    """The interface that the scheduler uses. Constructed from (pool, windows of the groups)."""

    version: int
    """Changes whenever a match may have become longer or shorter."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None: ...

    def peek(self, query: PrefixQuery) -> int:
        """Length of the longest usable cached prefix. Locks nothing, updates no access time."""

    def match(self, tokens: Sequence[int], namespace: str) -> PrefixMatch:
        """Lock and return the longest usable cached prefix. The caller's tables `adopt` it at
        once."""

    def lookup(self, tokens: Sequence[int], namespace: str) -> list[PageIds]:
        """Pages of the longest cached prefix, including the last token. Locks nothing, updates no
        access time. Pages outside of a sliding window may be missing."""

    def extend(
        self, match: PrefixMatch, tokens: Sequence[int], tables: PageTables, num_blocks: int
    ) -> None:
        """Cache the first `num_blocks` pages of a sequence, which are full now, and extend the
        lock to them. Where the cache holds equal pages, the tables are changed to those."""

    def fork(self, match: PrefixMatch) -> PrefixMatch:
        """Lock the same prefix once more."""

    def note_freed(self, pages: Iterable[int]) -> None:
        """Page tables freed these pages because they left the sliding window."""

    def release(self, match: PrefixMatch, pages: Iterable[int]) -> None:
        """Unlock the prefix of a sequence whose tables have freed all their pages."""

    def oldest_use(self) -> int | None:
        """Last use of the next victim (timestamp of the pool); None: nothing to evict."""

    def evict_oldest(self, number: int) -> int:
        """Evict up to `number` least recently used pages; return how many became free."""

    def block_pages(self) -> Iterator[PageIds]:
        """The page ids of all cached blocks, for audits."""

    def check(self, matches: Iterable[PrefixMatch]) -> None:
        """Raise an AssertionError unless the structure is consistent and exactly these matches
        lock it."""

    def recount(self) -> None:
        """Void all matches. An AssertionError if an operation was interrupted in a way that
        leaves the structure inconsistent."""

    def clear(self) -> None:
        """Forget all blocks and matches; the pages are not released."""

    def export(self) -> list[CachedRun]:
        """All cached runs, for saving; snapshot.py restores them."""

    def tree(self) -> dict[int, TreeNode]:
        """A copy of all nodes by id, parents first; empty for caches that have no tree."""


class NoPrefixCache:
    """Caches nothing: every prompt is computed completely."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.version = 0

    def peek(self, query: PrefixQuery) -> int:
        return 0

    def match(self, tokens: Sequence[int], namespace: str) -> PrefixMatch:
        return PrefixMatch(0, [])

    def lookup(self, tokens: Sequence[int], namespace: str) -> list[PageIds]:
        return []

    def extend(
        self, match: PrefixMatch, tokens: Sequence[int], tables: PageTables, num_blocks: int
    ) -> None:
        """Nothing is cached."""

    def fork(self, match: PrefixMatch) -> PrefixMatch:
        return PrefixMatch(0, [])

    def note_freed(self, pages: Iterable[int]) -> None:
        """Nothing is cached."""

    def release(self, match: PrefixMatch, pages: Iterable[int]) -> None:
        """Nothing is cached."""

    def oldest_use(self) -> int | None:
        return None

    def evict_oldest(self, number: int) -> int:
        return 0

    def block_pages(self) -> Iterator[PageIds]:
        return iter(())

    def check(self, matches: Iterable[PrefixMatch]) -> None:
        """Nothing is cached."""

    def recount(self) -> None:
        """Nothing is cached."""

    def clear(self) -> None:
        """Nothing is cached."""

    def export(self) -> list[CachedRun]:
        return []

    def tree(self) -> dict[int, TreeNode]:
        return {}


class WindowPages:
    """Cached pages of sliding-window groups. A page without a reference from page tables can be
    evicted alone, least recently used first."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None], owner: str) -> None:
        self.pool, self.owner = pool, owner
        self.groups = [i for i, window in enumerate(windows) if window is not None]
        self.page_ids: dict[int, PageIds] = {}
        """The list that a page is stored in. Lists move between nodes, pages stay in their list."""
        self.unused: OrderedDict[int, int] = OrderedDict()
        """Candidates for eviction, with the timestamp of their last use."""

    def add(self, page_ids: PageIds) -> None:
        """Register the pages of a block that was added to the cache, or filled in."""
        for group in self.groups:
            if page_ids[group]:
                self.page_ids[page_ids[group]] = page_ids

    def add_unused(self, page_ids: PageIds, last_use: int) -> None:
        """Register the pages of a block that no table holds, in the order of their last use."""
        self.add(page_ids)
        self.unused.update((page_ids[group], last_use) for group in self.groups if page_ids[group])

    def remove(self, page_ids: PageIds) -> None:
        """Forget the pages of a block that was evicted."""
        for group in self.groups:
            self.page_ids.pop(page_ids[group], None)
            self.unused.pop(page_ids[group], None)

    def note_freed(self, pages: Iterable[int], now: int) -> None:
        """Page tables freed these pages; those held by the cache alone become candidates."""
        if not self.page_ids:
            return
        for page in pages:
            if page in self.page_ids and self.pool.counts[page] == 1:
                self.unused[page] = now
                self.unused.move_to_end(page)

    def oldest_use(self) -> int | None:
        """Last use of the next victim; None: nothing to evict."""
        while self.unused:
            page, timestamp = next(iter(self.unused.items()))
            if self.pool.counts[page] == 1:
                return timestamp
            del self.unused[page]  # a table uses it again, and will report it when it is freed
        return None

    def evict(self) -> int:
        """Evict the least recently used page; return how many pages became free."""
        page, _ = self.unused.popitem(last=False)
        page_ids = self.page_ids.pop(page)
        page_ids[page_ids.index(page)] = NULL_PAGE
        return self.pool.evict([page], self.owner)


def check_block(page_ids: PageIds, windows: Sequence[int | None]) -> None:
    """A block has one page per group, which may be missing only in a group with a window."""
    is_complete = len(page_ids) == len(windows) and all(
        page or window is not None for page, window in zip(page_ids, windows, strict=True)
    )
    assert is_complete, f"a block has pages {page_ids} for windows {windows}"


def num_readable_blocks(
    block_pages: Sequence[PageIds], windows: Sequence[int | None], page_size: int
) -> int:
    """The largest number of leading blocks after which all windows can be read completely."""
    n, checked = len(block_pages), -1
    while n != checked:
        checked = n
        for group, window in enumerate(windows):
            if window is not None:
                n = trim_to_readable(block_pages, group, window, n, page_size)
    return n


def trim_to_readable(
    block_pages: Sequence[PageIds], group: int, window: int, n: int, page_size: int
) -> int:
    """The largest number of blocks up to `n` whose window is complete in one group."""
    block = n - 1
    while block >= first_readable_block(n * page_size, window, page_size):
        if block_pages[block][group] == NULL_PAGE:
            n = block  # every longer prefix up to the old n would read this block too
        block -= 1
    return n


def deduplicate(cached: PageIds, tables: PageTables, block: int, windows: WindowPages) -> bool:
    """Keep one copy of each page of a block that is already cached; whether `cached` was changed.

    Both have a page: the table changes to the cached one and frees its own. Only the table has one
    (the cached page was evicted from a window): the cache takes it. Only the cache has one: the
    block is outside of the window of this sequence.
    """
    is_filled = False
    for group, page in enumerate(cached):
        table_page = tables.by_group[group][block]
        if page and table_page and page != table_page:
            tables.replace_page(group, block, page)
        elif table_page and not page:
            cached[group] = table_page
            tables.pool.add_to_cache([table_page], OWNER)
            windows.add(cached)
            is_filled = True
    return is_filled


def max_match_blocks(num_tokens: int, page_size: int) -> int:
    """Maximum number of blocks of a match: the last token is always computed."""
    return max(0, num_tokens - 1) // page_size
