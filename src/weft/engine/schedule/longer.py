"""Plans of several passes: who can go on without a plan of its own, and the pages for it.

A search tells nobody of its tokens before it ends. Where everybody who runs is such a search, all
of the same width and at a token each, the tokens behind a pass can be run at once; its pages are
taken beforehand. A search that has fewer beams than its width, mostly one behind its prompt, gets
spare sequences for the beams to come: they share what lies before the first page that is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import PageCopy, num_blocks_for
from weft.engine.schedule.outcome import twin
from weft.engine.schedule.plan import Chunk
from weft.engine.schedule.request import Job, Sequence

JobChunks = list[tuple[Job, list[Chunk]]]


def all_can_go_on(jobs: JobChunks) -> bool:
    """Whether the tokens behind all chunks can be run without a plan of their own."""
    width = jobs[0][0].request.beam if jobs else 0
    for job, chunks in jobs:  # plain loops: this runs in every step
        if not job.request.beam == width > 0 or len(chunks) != len(job.sequences):
            return False
        for chunk in chunks:
            if not len(chunk.tokens) == chunk.num_samples == 1:
                return False
    return True


@dataclass(frozen=True)
class Longer:
    """One job that is to run for several passes."""

    job: Job
    chunks: list[Chunk]
    passes: int

    @property
    def num_spares(self) -> int:
        return self.job.request.beam - len(self.chunks)

    @property
    def num_pages(self) -> int:
        """What its sequences lack for all passes."""
        start, end = self.chunks[0].start, self.chunks[0].start + self.passes
        tables = [sequence.tables for sequence in self.job.sequences if sequence.tables]
        R = tables[0].pool.page_size
        of_a_spare = (num_blocks_for(end, R) - start // R) * len(tables[0].by_group)
        return (
            sum(one.num_pages_needed(start + 1, end) for one in tables)
            + self.num_spares * of_a_spare
        )

    def take_pages(self, kv_cache: KVCacheManager) -> list[PageCopy]:
        """So many as were counted; what must be copied into those of the spares."""
        start, copies = self.chunks[0].start, list[PageCopy]()
        for chunk, sequence in zip(self.chunks, self.job.sequences, strict=True):
            chunk.num_passes = self.passes
            copies += grow(sequence, start + 1, start + self.passes, kv_cache)
        assert not copies, f"{self.job.request.id} shares a page that it has just been given"
        # of the last one: its page is the original, where its siblings' are copies of this plan
        chunk, sequence = self.chunks[-1], self.job.sequences[-1]
        for _ in range(self.num_spares):
            spare = twin(self.job, sequence, kv_cache)
            copies += grow(spare, start, start + self.passes, kv_cache)
            assert spare.tables is not None, "a twin without page tables"
            self.job.spares.append(spare)
            chunk.spares.append(spare.tables.by_group)
        return copies


def longest(job: Job, chunks: list[Chunk], passes: int) -> Longer:
    """As many passes as a job can make, up to `passes`."""
    # at its limit a search may only end, which is decided in a pass of its own
    left = job.request.max_tokens - job.leader.num_generated
    return Longer(job, chunks, max(1, min(passes, left)))


def grow(sequence: Sequence, start: int, end: int, kv_cache: KVCacheManager) -> list[PageCopy]:
    """Pages that are known to be there."""
    tables = sequence.tables
    assert tables is not None, "a sequence runs without page tables"
    needed = tables.num_pages_needed(start, end)
    if not needed:
        return []
    fresh = kv_cache.allocate(needed, tables.owner)
    assert fresh is not None, f"{tables.owner} was promised {needed} pages"
    return tables.add_pages(start, end, fresh)
