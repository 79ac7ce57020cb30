"""A pool, one kind of prefix cache over it, and sequences that come and go."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cache import PREFIX_CACHES
from weft.cache.events import EventLog
from weft.cache.layout import Layout, Stripe
from weft.cache.memory import Memory
from weft.cache.pages import PagePool
from weft.cache.prefix import Match, Probe
from weft.cache.tables import Tables


class Rig:
    """Pages of 2 tokens, so that short runs have many."""

    def __init__(self, kind: str, windows: Sequence[int | None] = (None,), num_pages: int = 40):
        self.log = EventLog(None)
        self.pool = PagePool(num_pages, 2, self.log)
        self.windows = windows
        stripes = (Stripe((i,), window=window) for i, window in enumerate(windows))
        self.memory = Memory(Layout(tuple(stripes)), self.pool, PREFIX_CACHES[kind])
        self.cache = self.memory.prefix
        self.serial = 0

    def begin(self, tokens: list[int], namespace: str = "") -> tuple[Match, Tables]:
        """A sequence that found what is cached, and has pages for the rest."""
        self.serial += 1
        match = self.cache.match(tokens, namespace)
        tables = Tables(self.pool, self.windows, f"s{self.serial}")
        tables.adopt(match.columns)
        fresh = self.pool.allocate(tables.needs(match.length, len(tokens)), tables.owner)
        assert fresh is not None
        tables.grow(match.length, len(tokens), fresh)
        return match, tables

    def compute(self, match: Match, tables: Tables, tokens: list[int]) -> None:
        """All tokens have rows now."""
        self.cache.extend(match, tokens, tables, len(tokens) // 2)
        self.cache.passed(tables.trim(len(tokens)))

    def end(self, match: Match, tables: Tables) -> None:
        self.cache.release(match, tables.release())

    def store(self, tokens: list[int], namespace: str = "") -> None:
        """A whole life: afterwards the tokens are cached, as far as the kind caches anything."""
        match, tables = self.begin(tokens, namespace)
        self.compute(match, tables, tokens)
        self.end(match, tables)

    def cached(self, tokens: list[int], namespace: str = "") -> int:
        return self.cache.peek(Probe(tokens, namespace))

    @property
    def num_held(self) -> int:
        return self.pool.num_usable - self.pool.num_free
