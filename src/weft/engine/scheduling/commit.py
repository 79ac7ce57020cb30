"""Results of a step -> sequences, page tables and the prefix cache.

    mark_computed     rows count as computed, full pages enter the prefix cache, pages that leave
                      the sliding window are freed
    append_tokens     one sequence gets its accepted drafts and its sampled token
    fork_copy_on_write  after one step: children share the pages of their parent; its last child
                      takes them over
    fork_preallocated after several steps: each child is in the pages of one sequence, allocated
                      with the plan, into which the runner copied the rows of its parent

Rejected drafts never enter the cache: `num_computed` does not count them, and the next tokens
overwrite their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import num_blocks_for
from weft.engine.scheduling.plan import Appended, Child, Chunk, Forked, SequenceId
from weft.engine.scheduling.sequence import (
    Sequence,
    SequenceGroup,
    fork_followers,
    fork_sequence,
    release_sequence,
)
from weft.engine.stats import SchedulerStats


def commit_group(
    group: SequenceGroup,
    chunks: list[Chunk],
    appended: Mapping[SequenceId, Appended],
    forked: Forked | None,
    kv_cache: KVCacheManager,
    statistics: SchedulerStats,
) -> None:
    """Apply the results of one group, except that sequences may be finished."""
    if forked is not None and forked.is_preallocated:
        num_sequences = len(chunks) + len(group.spares)
        statistics.computed_tokens += num_sequences * (forked.num_steps - 1)
        fork_preallocated(group, forked.children, kv_cache)
        return
    for sequence, chunk in zip(sequences_of(group, chunks), chunks, strict=True):
        result = appended.get(chunk.sequence_id) if appended else None
        num_computed = chunk.end - chunk.num_drafts
        if result is not None:
            can_append = chunk.num_samples == 1 and (group.request.beam == 1 or not group.will_fork)
            assert can_append, f"{chunk.sequence_id} has to fork: nothing can be appended"
            num_computed = append_tokens(sequence, chunk, result)
            if chunk.num_steps > 1:
                statistics.computed_tokens += len(result.tokens) - 1
            else:
                statistics.accepted_tokens += len(result.tokens) - 1
        mark_computed(sequence, num_computed, kv_cache)
        statistics.draft_tokens += chunk.num_drafts
    if forked is not None:
        can_fork = all(chunk.num_samples for chunk in chunks)
        assert can_fork, f"{group.request.id} cannot fork before its prompt is computed"
        fork_copy_on_write(group, forked.children, kv_cache)
    elif group.waits_for_first:
        fork_followers(group, kv_cache)


def sequences_of(group: SequenceGroup, chunks: list[Chunk]) -> list[Sequence]:
    """The sequence of each chunk."""
    if len(chunks) == len(group.sequences) == 1:  # nearly always
        return group.sequences
    sequences = {sequence.index: sequence for sequence in group.sequences}
    return [sequences[chunk.index] for chunk in chunks]


def mark_computed(sequence: Sequence, num_computed: int, kv_cache: KVCacheManager) -> None:
    """The rows of the first `num_computed` tokens are written and final."""
    tables, match = sequence.tables, sequence.match
    assert tables is not None and match is not None, "a sequence without page tables was run"
    if kv_cache.pool.listener is not None:
        emit_writes(sequence, num_computed, kv_cache)
    sequence.num_computed = num_computed
    num_blocks = num_computed // kv_cache.pool.page_size
    if num_blocks * kv_cache.pool.page_size > match.length:
        kv_cache.prefix_cache.extend(match, sequence.tokens, tables, num_blocks)
    if tables.has_windows:
        kv_cache.prefix_cache.note_freed(tables.free_out_of_window(num_computed))


def emit_writes(sequence: Sequence, num_computed: int, kv_cache: KVCacheManager) -> None:
    """Emit an event for each page that got rows."""
    R, tables = kv_cache.pool.page_size, sequence.tables
    assert tables is not None, "rows were written for a sequence without page tables"
    for block in range(sequence.num_computed // R, num_blocks_for(num_computed, R)):
        rows = min(R, num_computed - block * R)
        kv_cache.pool.emit("write", tables.page_ids(block), tables.owner, rows)


def append_tokens(sequence: Sequence, chunk: Chunk, appended: Appended) -> int:
    """Append new tokens; return how many tokens have final rows now."""
    number = len(appended.tokens)
    if chunk.num_steps > 1:
        assert 0 < number <= chunk.num_steps, (
            f"{chunk.sequence_id} has {number} new tokens after {chunk.num_steps} steps"
        )
    else:
        drafts = chunk.tokens[len(chunk.tokens) - chunk.num_drafts :]
        accepted = list(appended.tokens[:-1])
        assert 0 < number <= chunk.num_drafts + 1 and accepted == drafts[: number - 1], (
            f"{chunk.sequence_id} reports {accepted} as accepted drafts of {drafts}"
        )
    sequence.tokens.extend(appended.tokens)
    return len(sequence.tokens) - 1


def fork_copy_on_write(
    group: SequenceGroup, children: SequenceOf[Child], kv_cache: KVCacheManager
) -> None:
    """Children replace the sequences of a group; the pages of parents without a child are freed."""
    parents, limit = group.sequences, group.request.num_sequences
    assert len(children) <= limit, f"{group.request.id} has {len(children)} children, over {limit}"
    if len(parents) == len(children) == 1:  # beam 1, and the end of many a search
        parents[0].tokens = [*parents[0].tokens, children[0].tokens[0]]
        return
    num_left = Counter(child.parent for child in children)
    for index, parent in enumerate(parents):
        if index not in num_left:
            release_sequence(parent, kv_cache.prefix_cache)
    sequences = []
    for child in children:
        parent = parents[child.parent]
        num_left[child.parent] -= 1
        is_last = num_left[child.parent] == 0
        sequences.append(parent if is_last else fork_sequence(group, parent, kv_cache))
    group.sequences = sequences
    for index, (sequence, child) in enumerate(zip(sequences, children, strict=True)):
        # a new list: after an exception the engine completes the step from the old ones
        sequence.index, sequence.tokens = index, [*sequence.tokens, child.tokens[0]]


def fork_preallocated(
    group: SequenceGroup, children: SequenceOf[Child], kv_cache: KVCacheManager
) -> None:
    """Children replace the sequences of a group, each in the pages that its rows were written to;
    before them it gets the tokens and the full pages of its parent. A finished group adds nothing
    more to the prefix cache."""
    parents = [*group.sequences, *group.spares]
    if not children:
        return
    targets = [child.pages_of for child in children]
    assert sorted(targets) == list(range(len(parents))), (
        f"{group.request.id} has {len(parents)} sequences, but children in the pages of {targets}"
    )
    parent_tokens = [parent.tokens for parent in parents]
    sequences = [parents[target] for target in targets]
    adopt_prefix(
        [
            (sequence, parents[child.parent])
            for sequence, child in zip(sequences, children, strict=True)
            if sequence is not parents[child.parent]
        ],
        kv_cache,
    )
    group.sequences, group.spares = sequences, []
    for index, (sequence, child) in enumerate(zip(sequences, children, strict=True)):
        sequence.index, sequence.tokens = index, [*parent_tokens[child.parent], *child.tokens]
        mark_computed(sequence, len(sequence.tokens) - 1, kv_cache)


def adopt_prefix(pairs: list[tuple[Sequence, Sequence]], kv_cache: KVCacheManager) -> None:
    """Give the first sequence of each pair the full pages and the prefix-cache lock of the second.
    All references are taken before any is released."""
    R, prefixes = kv_cache.pool.page_size, []
    for child, parent in pairs:
        assert child.tables and parent.tables and parent.match, "a sequence without page tables"
        leading = parent.tables.leading_pages(parent.num_computed // R)
        kv_cache.pool.share((page for table in leading for page in table), child.tables.owner)
        prefixes.append((leading, kv_cache.prefix_cache.fork(parent.match)))
    for (child, _), (leading, match) in zip(pairs, prefixes, strict=True):
        assert child.tables and child.match, "a sequence without page tables"
        kv_cache.prefix_cache.release(child.match, child.tables.replace_leading(leading))
        child.match = match


def sequences_at_limit(group: SequenceGroup) -> list[SequenceId]:
    """Sequences that have reached max_tokens. Beam search ends by itself: one more step over the
    last token gives the score of the end token."""
    limit = group.request.max_tokens + (group.request.beam > 0)
    longest = 0
    for sequence in group.sequences:  # a plain loop: this runs for every group in every step
        longest = max(longest, sequence.num_generated)
    assert longest <= limit, f"{group.request.id} has {longest} new tokens, over {limit}"
    if group.request.beam or longest < limit:
        return []
    return [
        SequenceId(group.request.id, s.index) for s in group.sequences if s.num_generated == limit
    ]
