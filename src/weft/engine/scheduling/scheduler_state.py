"""Everything the scheduler keeps between two steps: sequence groups, the waiting queue, the KV
cache, and the counters. Also the engine statistics that are computed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import PageTables
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.fair_queue import FairQueue
from weft.engine.scheduling.layered_prefill import LayeredPrefill
from weft.engine.scheduling.plan import LayerRange
from weft.engine.scheduling.sequence import (
    Request,
    RequestTimes,
    Sequence,
    SequenceGroup,
    release_sequence,
)
from weft.engine.scheduling.step_times import DrainRate, StepTimes
from weft.engine.scheduling.waiting_queue import WaitingQueue
from weft.engine.stats import EngineStats, SchedulerStats, best_hits, ratio


@dataclass
class KeyLoad:
    """The share of one API key in the waiting work."""

    num_waiting: int = 0
    """Number of requests."""
    num_running: int = 0
    """Number of sequences."""
    tokens_ahead: int = 0


@dataclass(frozen=True)
class SchedulerLoad:
    """The waiting work and the rates at which it is done, for load shedding."""

    num_waiting: int
    """Number of requests."""
    num_running: int
    tokens_ahead: int
    """Tokens of prompts, sources and texts that are not computed yet, including prefixes of waiting
    requests that are cached."""
    prefill_rate: float
    """Tokens of prompts, sources and texts per second, a moving average; 0.0: not measured yet."""
    decode_rate: float
    """New tokens of all requests together per second, a moving average; 0.0: not measured yet."""
    drain_rate: float
    """Decrease of `tokens_ahead` per second while requests waited, a moving average; 0.0: not
    measured yet."""
    admission_rate: float
    """Requests admitted per second while others waited; 0.0: not measured yet."""
    keys: Mapping[str, KeyLoad] = field(default_factory=dict)
    """By API key."""


class SchedulerState:
    """A group is in `groups` from arrival to finish. It waits, runs, or is embedded in this
    step."""

    def __init__(
        self, config: SchedulerConfig, kv_cache: KVCacheManager, now: Callable[[], float]
    ) -> None:
        self.config, self.kv_cache, self.now = config, kv_cache, now
        self.statistics, self.step_times = SchedulerStats(), StepTimes()
        self.drain_rate = DrainRate()
        self.waiting = FairQueue(
            lambda: WaitingQueue(kv_cache.prefix_cache, config, kv_cache.pool.page_size)
        )
        self.groups: dict[str, SequenceGroup] = {}
        self.running: dict[str, SequenceGroup] = {}
        """Running groups, in the order of admission."""
        self.num_running = 0
        """Number of sequences that running groups have or will have."""
        self.num_streamed = 0
        """Number of streamed groups."""
        self.num_arrived = 0
        self.is_shared = False
        """Whether another engine of the thread has work: plans are then shorter."""
        self.layered: LayeredPrefill | None = None
        """Chunks whose layers are partly computed."""

    @property
    def last_admitted(self) -> SequenceGroup:
        """The running group that was admitted last: the first to be preempted."""
        return next(reversed(self.running.values()))

    def last_of_largest_key(self) -> SequenceGroup | None:
        """The running group admitted last of the key with most pages, among keys with at least two
        running groups; None: there is none, or all groups have the same key."""
        if self.waiting.has_one_key:
            return None
        by_key = self.running_by_key()
        keys = [key for key, groups in by_key.items() if len(groups) > 1]
        return by_key[max(keys, key=self.num_pages_of_key)][-1] if keys else None

    def running_by_key(self) -> dict[str, list[SequenceGroup]]:
        """Running groups of each key, in the order of admission. Groups whose source is being
        encoded are left out: they cannot be preempted."""
        by_key: dict[str, list[SequenceGroup]] = {}
        for group in self.running.values():
            if group.source is None or group.source.is_written:
                by_key.setdefault(group.request.key, []).append(group)
        return by_key

    def num_pages_of_key(self, key: str) -> int:
        """Pages of the running groups of a key; those that they share count several times."""
        return sum(one.num_pages for one in self.running.values() if one.request.key == key)

    def num_preemptible_pages(self) -> int:
        """Pages of all running groups but the first of each key."""
        return sum(one.num_pages for groups in self.running_by_key().values() for one in groups[1:])

    def add(self, request: Request) -> None:
        group = SequenceGroup(request, self.num_arrived, RequestTimes(self.now()))
        self.groups[request.id] = group
        self.num_arrived += 1
        self.num_streamed += request.is_streamed
        self.waiting.arrive(group)

    def start(self, group: SequenceGroup) -> None:
        """Move a waiting group to the running ones."""
        self.waiting.admitted(group)
        self.running[group.request.id] = group
        self.num_running += group.request.num_sequences

    def stop(self, group: SequenceGroup) -> bool:
        """Remove a group from the running ones; False: it did not run."""
        was_running = self.running.pop(group.request.id, None) is not None
        self.num_running -= group.request.num_sequences if was_running else 0
        return was_running

    def requeue(self, group: SequenceGroup) -> None:
        """Move a running group to the front of the queue. Its pages are freed; cached ones stay
        cached."""
        self.release_pages(group)
        self.stop(group)
        self.waiting.requeue(group)

    def requeue_all(self, only: frozenset[str] | None = None) -> None:
        """After an exception: put all groups into the queue, without pages, in the order in which
        they would continue. Nothing is released. `only`: the other groups are left out of the
        queue."""
        for group in self.groups.values():
            group.drop_pages()
        groups = [group for name, group in self.groups.items() if only is None or name in only]
        admitted = [*self.running.values(), *self.waiting.preempted]
        self.waiting.rebuild(groups, admitted, self.groups.values())
        self.running.clear()
        self.layered = None
        self.num_running = 0
        self.num_streamed = sum(group.request.is_streamed for group in self.groups.values())

    def remove(self, group: SequenceGroup) -> None:
        """Remove a finished group; every page is freed or stays in a cache, unlocked."""
        self.release_pages(group)
        del self.groups[group.request.id]
        if not self.stop(group):
            self.waiting.remove(group)
        self.waiting.leave(group)
        self.num_streamed -= group.request.is_streamed

    def remove_sequence(self, group: SequenceGroup, index: int) -> None:
        """Remove one finished sequence; with the last one, the group."""
        has_followers = group.request.id in self.running and group.waits_for_first
        self.drop_layers(group)
        for sequence in [s for s in group.sequences if s.index == index]:
            release_sequence(sequence, self.kv_cache.prefix_cache)
            group.sequences.remove(sequence)
        if not group.sequences:
            self.remove(group)
        elif has_followers:
            self.requeue(group)  # the removed sequence may be the first, which the others wait for

    def drop_layers(self, group: SequenceGroup) -> None:
        """Discard the partly computed layers of a group."""
        if self.layered is not None:
            self.layered.remove(group.request.id)
            if not self.layered.chunks:
                self.layered = None

    def advance_layers(self, computed: LayerRange) -> None:
        """Record that these layers were computed."""
        if self.layered is not None:
            self.layered.position = computed.end
            if computed.is_last:
                self.layered = None

    def release_pages(self, group: SequenceGroup) -> None:
        self.drop_layers(group)
        for sequence in [*group.sequences, *group.spares]:
            release_sequence(sequence, self.kv_cache.prefix_cache)
        group.spares = []
        if group.source is not None:
            self.kv_cache.encoder_cache.release(group.source, group.request.id)
            group.source = None

    def sequences_with_pages(self) -> Iterator[tuple[SequenceGroup, Sequence, PageTables]]:
        """All sequences that have page tables, spares included."""
        for group in self.groups.values():
            for sequence in [*group.sequences, *group.spares]:
                if sequence.tables is not None:
                    yield group, sequence, sequence.tables

    def filled_rows(self) -> dict[int, int]:
        """Number of rows of each held page that belong to a computed token."""
        R, filled = self.kv_cache.pool.page_size, dict[int, int]()
        for _, sequence, tables in self.sequences_with_pages():
            for table in tables.by_group:
                for block, page in enumerate(table):
                    rows = max(0, min(R, sequence.num_computed - block * R))
                    filled[page] = max(rows, filled.get(page, 0))
        for source in self.kv_cache.encoder_cache.sources.values():
            for table in source.page_tables:
                for block, page in enumerate(table):
                    filled[page] = min(R, source.num_tokens - block * R)
        cached = self.kv_cache.prefix_cache.block_pages()
        filled |= {page: R for page_ids in cached for page in page_ids}
        filled.pop(0, None)
        return filled

    def row_share(self) -> float:
        """Share of the rows in held pages that belong to a computed token; 1.0 without pages."""
        R, filled = self.kv_cache.pool.page_size, self.filled_rows()
        return sum(filled.values()) / (len(filled) * R) if filled else 1.0

    def load(self) -> SchedulerLoad:
        """The waiting work and the measured rates. May be called from any thread."""
        groups, num_running = list(self.groups.values()), len(self.running)
        keys = self.load_by_key(groups)
        return SchedulerLoad(
            num_waiting=max(0, len(groups) - num_running),
            num_running=num_running,
            tokens_ahead=sum(one.tokens_ahead for one in keys.values()),
            prefill_rate=self.step_times.prefill_rate,
            decode_rate=self.step_times.decode_rate,
            drain_rate=self.drain_rate.token_rate,
            admission_rate=self.drain_rate.request_rate,
            keys=keys,
        )

    def load_by_key(self, groups: Iterable[SequenceGroup]) -> dict[str, KeyLoad]:
        """The loads of the API keys of some groups."""
        keys: dict[str, KeyLoad] = {}
        for group in groups:
            load = keys.setdefault(group.request.key, KeyLoad())
            load.tokens_ahead += group.num_uncomputed
            if group.request.id in self.running:
                load.num_running += group.request.num_sequences
            else:
                load.num_waiting += 1
        return keys

    def engine_stats(self) -> EngineStats:
        """Counters so far and the current use of pages."""
        counts, pool, log = self.statistics, self.kv_cache.pool, self.statistics.log
        return EngineStats(
            requests=counts.admitted,
            waiting=len(self.waiting),
            running=len(self.running),
            steps=counts.steps,
            computed_tokens=counts.computed_tokens,
            prompt_tokens=counts.prompt_tokens,
            hit_tokens=counts.cached_tokens,
            hit_rate=counts.hit_rate,
            recent_requests=len(log.prompts),
            recent_hit_rate=ratio(log.num_cached, log.num_tokens),
            optimal_hit_rate=ratio(best_hits(log.prompts, pool.page_size), log.num_tokens),
            encoded_tokens=counts.encoded_tokens,
            source_hit_tokens=counts.cached_source_tokens,
            draft_tokens=counts.draft_tokens,
            accepted_tokens=counts.accepted_tokens,
            pages=pool.num_usable,
            pages_in_use=pool.num_usable - pool.num_free - pool.num_evictable,
            pages_cached=pool.num_evictable,
            row_share=self.row_share(),
            preemptions=counts.preempted,
            evictions=self.kv_cache.num_evicted,
        )
