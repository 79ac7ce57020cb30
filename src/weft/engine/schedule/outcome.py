"""After the pass: rows that were computed and tokens that were sampled -> sequences moved on.

    settle   rows count as computed, full pages enter the prefix cache, windows give pages back
    grow     one sequence gets its accepted drafts and its sampled token
    branch   all sequences of a job are replaced by children; a parent's last child takes its pages
    branch_far  the same behind several passes, whose forks were copies into pages of their own

What was not accepted never enters the cache: `num_computed` does not count it, and the next tokens
overwrite its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import num_blocks_for
from weft.engine.schedule.admission import attach, fork, let_go
from weft.engine.schedule.plan import Branched, BranchedFar, Chunk, Grown, Key
from weft.engine.schedule.request import Job, Sequence
from weft.engine.schedule.statistics import Statistics


def commit_job(
    job: Job,
    chunks: list[Chunk],
    grown: Mapping[Key, Grown],
    branched: Branched | BranchedFar | None,
    kv_cache: KVCacheManager,
    statistics: Statistics,
) -> None:
    """Everything that one step changes about one job, except that somebody may be finished."""
    if isinstance(branched, BranchedFar):
        num_lanes = len(chunks) + len(job.spares)
        statistics.computed_tokens += num_lanes * (branched.num_passes - 1)
        branch_far(job, branched, kv_cache)
        return
    for sequence, chunk in zip(ran(job, chunks), chunks, strict=True):
        result = grown.get(chunk.key) if grown else None
        num_computed = chunk.end - chunk.num_drafts
        if result is not None:
            is_alone = chunk.num_samples == 1 and (job.request.beam == 1 or not job.is_branching)
            assert is_alone, f"{chunk.key} cannot grow"
            num_computed = grow(sequence, chunk, result)
            if chunk.num_passes > 1:
                statistics.computed_tokens += len(result.tokens) - 1
            else:
                statistics.accepted_tokens += len(result.tokens) - 1
        settle(sequence, num_computed, kv_cache)
        statistics.draft_tokens += chunk.num_drafts
    if branched is not None:
        assert all(chunk.num_samples for chunk in chunks), f"{job.request.id} cannot branch yet"
        branch(job, branched, kv_cache)
    elif job.has_followers:
        attach(job, kv_cache)


def ran(job: Job, chunks: list[Chunk]) -> list[Sequence]:
    """The sequence of each chunk."""
    if len(chunks) == len(job.sequences) == 1:  # nearly always
        return job.sequences
    sequences = {sequence.index: sequence for sequence in job.sequences}
    return [sequences[chunk.index] for chunk in chunks]


def settle(sequence: Sequence, num_computed: int, kv_cache: KVCacheManager) -> None:
    """The rows of the first `num_computed` tokens are written, and those tokens are certain."""
    tables, match = sequence.tables, sequence.match
    assert tables is not None and match is not None, "a sequence without tables was run"
    if kv_cache.pool.listener is not None:
        tell_written(sequence, num_computed, kv_cache)
    sequence.num_computed = num_computed
    num_blocks = num_computed // kv_cache.pool.page_size
    if num_blocks * kv_cache.pool.page_size > match.length:
        kv_cache.prefix_cache.extend(match, sequence.tokens, tables, num_blocks)
    if tables.has_windows:
        kv_cache.prefix_cache.note_freed(tables.free_out_of_window(num_computed))


def tell_written(sequence: Sequence, num_computed: int, kv_cache: KVCacheManager) -> None:
    """Events of the pages that got rows, for whoever listens."""
    R, tables = kv_cache.pool.page_size, sequence.tables
    assert tables is not None, "rows were written for a sequence without tables"
    for block in range(sequence.num_computed // R, num_blocks_for(num_computed, R)):
        rows = min(R, num_computed - block * R)
        kv_cache.pool.emit("write", tables.page_ids(block), tables.owner, rows)


def grow(sequence: Sequence, chunk: Chunk, grown: Grown) -> int:
    """Append new tokens; how many tokens have certain rows now."""
    number = len(grown.tokens)
    if chunk.num_passes > 1:
        assert 0 < number <= chunk.num_passes, (
            f"{chunk.key} reports {number} tokens of {chunk.num_passes} passes"
        )
    else:
        drafts = chunk.tokens[len(chunk.tokens) - chunk.num_drafts :]
        accepted = list(grown.tokens[:-1])
        assert 0 < number <= chunk.num_drafts + 1 and accepted == drafts[: number - 1], (
            f"{chunk.key} reports {accepted} as accepted drafts of {drafts}"
        )
    sequence.tokens.extend(grown.tokens)
    return len(sequence.tokens) - 1


def branch(job: Job, branched: Branched, kv_cache: KVCacheManager) -> None:
    """Children replace the sequences of a job; parents without a child let their pages go."""
    parents, children = job.sequences, list(branched.children)
    limit = job.request.num_sequences
    assert len(children) <= limit, f"{job.request.id} has {len(children)} children, over {limit}"
    if len(parents) == len(children) == 1:  # beam 1, and the end of many a search
        parents[0].tokens.append(children[0][1])
        return
    left = Counter(place for place, _ in children)
    for place, parent in enumerate(parents):
        if place not in left:
            let_go(parent, kv_cache.prefix_cache)
    job.sequences = []
    for place, _ in children:
        left[place] -= 1
        is_last = left[place] == 0
        job.sequences.append(parents[place] if is_last else twin(job, parents[place], kv_cache))
    for index, (sequence, (_, token)) in enumerate(zip(job.sequences, children, strict=True)):
        sequence.index = index
        sequence.tokens.append(token)


def twin(job: Job, parent: Sequence, kv_cache: KVCacheManager) -> Sequence:
    """A second sequence with the same tokens and pages."""
    child = Sequence(0, list(parent.tokens), parent.num_prompt)
    fork(job, parent, child, kv_cache.prefix_cache)
    return child


def branch_far(job: Job, branched: BranchedFar, kv_cache: KVCacheManager) -> None:
    """Children replace the sequences of a job, each in the pages of its lane; in front of them it
    has the tokens and the full pages of its parent. Of a job that is finished nothing more enters
    the prefix cache."""
    parents, children = [*job.sequences, *job.spares], branched.children
    if not children:
        return
    lanes = sorted(child.lane for child in children)
    assert lanes == list(range(len(parents))), f"{job.request.id} has {lanes} for its lanes"
    texts = [parent.tokens for parent in parents]
    moves = [(parents[child.lane], parents[child.parent]) for child in children]
    begin_like([(one, other) for one, other in moves if one is not other], kv_cache)
    job.sequences, job.spares = [one for one, _ in moves], []
    for index, (sequence, child) in enumerate(zip(job.sequences, children, strict=True)):
        sequence.index, sequence.tokens = index, [*texts[child.parent], *child.tokens]
        settle(sequence, len(sequence.tokens) - 1, kv_cache)


def begin_like(pairs: list[tuple[Sequence, Sequence]], kv_cache: KVCacheManager) -> None:
    """The first of each pair gets what the second one has in front of the page that it writes into:
    its full pages, and its place in the prefix cache. All are taken before any is given back."""
    R, taken = kv_cache.pool.page_size, []
    for one, other in pairs:
        assert one.tables and other.tables and other.match, "a sequence without tables was run"
        taken.append(
            (
                other.tables.leading_pages(other.num_computed // R),
                kv_cache.prefix_cache.fork(other.match),
            )
        )
        kv_cache.pool.share((page for table in taken[-1][0] for page in table), one.tables.owner)
    for (one, _), (front, match) in zip(pairs, taken, strict=True):
        assert one.tables and one.match, "a sequence without tables was run"
        kv_cache.prefix_cache.release(one.match, one.tables.replace_leading(front))
        one.match = match
