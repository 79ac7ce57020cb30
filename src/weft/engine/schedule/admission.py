"""A waiting job -> one that runs: its source, its cached prefix and room for what it computes.

Nothing is reserved for later: a job that outgrows the pages is preempted. But it is admitted only
when all tokens that it has now would fit, with a watermark for those who run already, so that it is
not thrown out in the middle of its prompt. Alone it is always admitted: limits.py saw that it fits.
"""

from __future__ import annotations

from enum import Enum, auto

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import PageTables, num_blocks_for
from weft.cache.prefix_cache import PrefixCache, PrefixQuery
from weft.engine.schedule.limits import window_blocks
from weft.engine.schedule.request import Job, Sequence, common_length
from weft.engine.schedule.settings import SchedulerConfig
from weft.engine.schedule.statistics import Statistics
from weft.engine.schedule.step import Step


class Verdict(Enum):
    ADMITTED = auto()
    LATER = auto()
    """Not in this step; others may go on."""
    FULL = auto()
    """No room: nobody else is admitted in this step."""


class Admission:
    """Gives a job its source and its leader's page tables, or leaves everything as it was."""

    def __init__(
        self, config: SchedulerConfig, kv_cache: KVCacheManager, statistics: Statistics
    ) -> None:
        self.config, self.kv_cache, self.statistics = config, kv_cache, statistics
        self.watermark = int(config.watermark * kv_cache.pool.num_usable)
        self.num_matches = 0

    def admit(self, job: Job, step: Step, is_alone: bool) -> Verdict:
        """Try to let a job run from this step on; `is_alone`: nothing else runs."""
        if not is_alone and self.least_pages(job) + self.watermark > self.kv_cache.num_available:
            return Verdict.FULL
        if not self.find_source(job, step):
            return Verdict.LATER
        self.find_prefix(job)
        needed = self.new_source_pages(job) + self.pages_now(job, step.budget)
        if not is_alone and needed + self.watermark > self.kv_cache.num_available:
            self.undo(job)
            return Verdict.FULL
        self.make_source(job, step)
        self.count(job)
        job.was_admitted = True
        if job.has_followers:
            attach(job, self.kv_cache)
        return Verdict.ADMITTED

    def find_source(self, job: Job, step: Step) -> bool:
        """Take up a source that is there already; False if it would have to be encoded, and this
        step's encoder has no budget for it."""
        if job.source_key is None or job.request.source is None:
            return True
        job.source = self.kv_cache.encoder_cache.find(job.source_key)
        if job.source is None:
            return step.can_encode(len(job.request.source))
        self.kv_cache.encoder_cache.acquire(job.source, job.request.id)
        return True

    def find_prefix(self, job: Job) -> None:
        """The leader begins with the longest cached prefix of what all sequences have in common."""
        job.common = common_length(job.sequences)
        tokens = job.leader.tokens[: job.common + 1]
        self.num_matches += 1
        if self.config.miss_every and self.num_matches % self.config.miss_every == 0:
            tokens = []
        begin(job, job.leader, tokens, self.kv_cache)

    def least_pages(self, job: Job) -> int:
        """A quick look before anything is locked: pages that the leader surely needs."""
        R, num_full = self.kv_cache.pool.page_size, self.kv_cache.windows.count(None)
        cached = self.kv_cache.prefix_cache.peek(job.prefix_query)
        return (num_blocks_for(job.leader.num_prompt, R) - cached // R) * num_full

    def pages_now(self, job: Job, budget: int) -> int:
        """Pages for all tokens that the job has now, without what is cached."""
        R, tables = self.kv_cache.pool.page_size, job.leader.tables
        assert tables is not None, f"{job.request.id} has no tables"
        shared = job.common // R
        tails = sum(num_blocks_for(len(s.tokens), R) - shared for s in job.sequences)
        blocks = shared - tables.num_blocks + tails
        size = len(job.sequences)
        return sum(
            min(blocks, size * window_blocks(window, budget, R, blocks))
            for window in self.kv_cache.windows
        )

    def new_source_pages(self, job: Job) -> int:
        is_new = job.source is None and job.request.source is not None
        return self.kv_cache.encoder_cache.num_pages(len(job.request.source or ())) if is_new else 0

    def make_source(self, job: Job, step: Step) -> None:
        """Pages for a new source, to be encoded in this step."""
        ids, key = job.request.source, job.source_key
        if ids is None or key is None:
            return
        if job.source is not None:
            if not job.was_admitted:
                self.statistics.cached_source_tokens += len(ids)
            return
        pages = self.kv_cache.allocate(self.new_source_pages(job), job.request.id)
        assert pages is not None, f"no room for a source of {len(ids)} tokens"
        job.source = self.kv_cache.encoder_cache.add(key, len(ids), pages, job.request.id)
        step.encode(job.source, ids)

    def undo(self, job: Job) -> None:
        """There was no room: the job waits on."""
        let_go(job.leader, self.kv_cache.prefix_cache)
        if job.source is not None:
            self.kv_cache.encoder_cache.release(job.source, job.request.id)
            job.source = None

    def count(self, job: Job) -> None:
        if not job.was_admitted:
            self.statistics.count(job.request, job.leader.num_computed)


def begin(job: Job, sequence: Sequence, tokens: list[int], kv_cache: KVCacheManager) -> None:
    """Give a sequence tables that begin with the cached prefix of `tokens`."""
    match = kv_cache.prefix_cache.match(tokens, job.namespace)
    sequence.match = match
    sequence.tables = PageTables(kv_cache.pool, kv_cache.windows, job.next_owner())
    sequence.tables.adopt(match.block_pages)
    match.block_pages = []
    sequence.num_computed = match.length


def attach(job: Job, kv_cache: KVCacheManager) -> None:
    """Once the leader has computed what all have in common, the others fork from it."""
    leader = job.leader
    if leader.num_computed < job.common:
        return
    assert leader.num_computed == job.common, f"{leader.num_computed} computed, not {job.common}"
    for sequence in job.sequences[1:]:
        fork(job, leader, sequence, kv_cache.prefix_cache)
    for sequence in job.sequences:
        look_further(job, sequence, kv_cache)


def look_further(job: Job, sequence: Sequence, kv_cache: KVCacheManager) -> None:
    """A sequence that was preempted may find its own pages behind the common ones, too."""
    probe = PrefixQuery(sequence.tokens, job.namespace)
    if kv_cache.prefix_cache.peek(probe) > sequence.num_computed:
        let_go(sequence, kv_cache.prefix_cache)
        begin(job, sequence, sequence.tokens, kv_cache)


def fork(job: Job, parent: Sequence, child: Sequence, prefix: PrefixCache) -> None:
    """The child goes on from the parent's rows; full pages and the last one are shared."""
    assert parent.tables is not None and parent.match is not None, "a parent that does not run"
    child.tables = parent.tables.fork(job.next_owner(), parent.num_computed)
    child.match = prefix.fork(parent.match)
    child.num_computed = parent.num_computed


def let_go(sequence: Sequence, prefix: PrefixCache) -> None:
    """Every page goes back; those that are cached stay there, unlocked."""
    if sequence.tables is not None and sequence.match is not None:
        prefix.release(sequence.match, sequence.tables.release())
    sequence.tables = sequence.match = None
    sequence.num_computed = 0
