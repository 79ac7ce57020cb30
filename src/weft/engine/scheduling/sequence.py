"""A request of the scheduler and its state: `Request`, `SequenceGroup`, `Sequence`.

    Request        prompt, source, max_tokens, n, beam          immutable, from the caller
    SequenceGroup  a request in the scheduler: waiting, running or preempted
    Sequence       tokens so far, how many of them have KV rows, and their page tables

n samples and beams start as one sequence: the prompt is computed once, and forks share its pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from weft.cache.encoder_cache import EncodedSource, source_key
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import PageTables
from weft.cache.prefix_cache import PrefixCache, PrefixMatch, PrefixQuery


@dataclass(frozen=True)
class Request:
    """Input of the scheduler. `Scheduler.add` rejects requests that can never be served."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int = 16
    source: tuple[int, ...] | None = None
    """Ids for the encoder of an encoder-decoder."""
    salt: str = ""
    """Requests with different salts share nothing, neither prefixes nor sources."""
    n: int = 1
    """Number of samples of the same prompt."""
    beam: int = 0
    """Above 0: beam search of this width."""
    is_pooling: bool = False
    """The prompt runs once through the encoder and nothing is generated."""
    key: str = ""
    """Name of the API key. Keys share the engine equally."""
    is_streamed: bool = False
    """Whether its tokens are read as they are generated, so that inter-token latency matters."""

    @property
    def source_key(self) -> str | None:
        """The key of its source in the encoder cache."""
        return None if self.source is None else source_key(self.source, self.salt)

    @property
    def namespace(self) -> str:
        """Namespace in the prefix cache: the rows of a decoder depend on the source."""
        return self.source_key or self.salt

    @property
    def num_sequences(self) -> int:
        """Maximum number of sequences that run at once."""
        return max(self.n, self.beam)


@dataclass(eq=False)
class RequestTimes:
    """When a request arrived and began to run, in seconds of the scheduler's clock. The object
    stays valid after the request has finished."""

    arrived_at: float
    admitted_at: float | None = None
    """Time of the first admission; None: it waits."""
    num_cached: int = 0
    """Cached prompt tokens at the first admission."""

    @property
    def queue_seconds(self) -> float | None:
        """Time from arrival to first admission; None: it waits."""
        return None if self.admitted_at is None else self.admitted_at - self.arrived_at


class Sequence:
    """Tokens of one sample or beam. Without page tables it waits: for admission, or for the first
    sequence of its group."""

    def __init__(self, index: int, tokens: list[int], num_prompt: int) -> None:
        self.index, self.tokens, self.num_prompt = index, tokens, num_prompt
        self.num_computed = 0
        """Tokens whose rows are in the pages; the last sampled token has none yet."""
        self.tables: PageTables | None = None
        self.match: PrefixMatch | None = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.tokens) - self.num_computed


@dataclass(eq=False)
class SequenceGroup:
    """A request in the scheduler. `sequences` are those that are not finished."""

    request: Request
    arrival: int
    """Number in the order of arrival."""
    times: RequestTimes = field(default_factory=lambda: RequestTimes(0.0))
    namespace: str = field(init=False)
    source_key: str | None = field(init=False, default=None)
    sequences: list[Sequence] = field(init=False)
    spares: list[Sequence] = field(init=False, default_factory=list)
    """Forks of a sequence with pages of their own, for beams that a multi-step plan will add."""
    prefix_query: PrefixQuery = field(init=False)
    """The prompt, for looking up how much of it is cached."""
    source: EncodedSource | None = field(init=False, default=None)
    """Held while the group runs."""
    common_len: int = field(init=False, default=0)
    """Leading tokens of all sequences: the first sequence computes them, then the others fork."""
    times_overtaken: int = field(init=False, default=0)
    """Number of later groups that were admitted before this one."""
    was_admitted: bool = field(init=False, default=False)
    owner_serials: count[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        request = self.request
        self.source_key = request.source_key
        self.namespace = self.source_key or request.salt
        prompt = list(request.prompt)
        self.sequences = [Sequence(0, prompt, len(prompt))]
        self.prefix_query = PrefixQuery(prompt[:], self.namespace)

    @property
    def first(self) -> Sequence:
        return self.sequences[0]

    @property
    def waits_for_first(self) -> bool:
        """True while sequences wait for the first one to compute their common tokens."""
        return self.sequences[-1].tables is None

    @property
    def is_decoding(self) -> bool:
        """Every sequence has exactly one token to compute."""
        for sequence in self.sequences:  # a plain loop: this runs for every group in every step
            if sequence.tables is None or len(sequence.tokens) - sequence.num_computed != 1:
                return False
        return True

    @property
    def will_fork(self) -> bool:
        """The result of the next sampled step is a `Forked`: a parent for each sequence."""
        return self.request.beam > 0 or (self.request.n > 1 and self.first.num_generated == 0)

    @property
    def num_uncomputed(self) -> int:
        """Tokens to compute before the next one can be sampled, of its source too; 0: it decodes.
        While it waits it is not known how many of them are cached."""
        num_tokens = sum(one.num_remaining for one in self.sequences[:1])
        if self.source is None:
            num_tokens += len(self.request.source or ())
        return 0 if num_tokens == 1 else num_tokens

    @property
    def num_pages(self) -> int:
        """Pages of its sequences; those that they share count several times."""
        tables = (one.tables for one in self.sequences if one.tables is not None)
        return sum(len(table) for one in tables for table in one.by_group)

    def mark_admitted(self, now: float, num_cached: int = 0) -> None:
        """Record an admission; its time and cached tokens if it is the first."""
        if not self.was_admitted:
            self.times.admitted_at, self.times.num_cached = now, num_cached
        self.was_admitted = True

    def drop_pages(self) -> None:
        """Forget page tables, matches and the source without releasing them: the pages are about to
        be recounted."""
        for sequence in self.sequences:
            sequence.tables = sequence.match = None
            sequence.num_computed = 0
        self.spares, self.source = [], None
        self.prefix_query = PrefixQuery(list(self.request.prompt), self.namespace)

    def next_owner(self) -> str:
        """A new name under which page tables of this group hold pages."""
        return f"{self.request.id}/{next(self.owner_serials)}"


def common_prefix_len(sequences: list[Sequence]) -> int:
    """Number of leading tokens that all sequences share, leaving each at least one of its own."""
    shortest = min(len(sequence.tokens) for sequence in sequences)
    low, high = 0, shortest - 1
    first = sequences[0].tokens
    while low < high:
        middle = (low + high + 1) // 2
        is_same = all(s.tokens[low:middle] == first[low:middle] for s in sequences[1:])
        low, high = (middle, high) if is_same else (low, middle - 1)
    return low


def start_sequence(
    group: SequenceGroup, sequence: Sequence, tokens: list[int], kv_cache: KVCacheManager
) -> None:
    """Give a sequence page tables that start with the cached prefix of `tokens`."""
    match = kv_cache.prefix_cache.match(tokens, group.namespace)
    sequence.match = match
    sequence.tables = PageTables(kv_cache.pool, kv_cache.windows, group.next_owner())
    sequence.tables.adopt(match.block_pages)
    match.block_pages = []
    sequence.num_computed = match.length


def fork_followers(group: SequenceGroup, kv_cache: KVCacheManager) -> None:
    """Fork the other sequences once the first one has computed the common tokens."""
    first = group.first
    if first.num_computed < group.common_len:
        return
    assert first.num_computed == group.common_len, (
        f"{first.num_computed} tokens are computed, not {group.common_len}"
    )
    for sequence in group.sequences[1:]:
        share_pages(group, first, sequence, kv_cache.prefix_cache)
    for sequence in group.sequences:
        extend_match(group, sequence, kv_cache)


def extend_match(group: SequenceGroup, sequence: Sequence, kv_cache: KVCacheManager) -> None:
    """Restart a sequence from the prefix cache if more of its tokens are cached: a preempted
    sequence may find pages after the common ones."""
    query = PrefixQuery(sequence.tokens, group.namespace)
    if kv_cache.prefix_cache.peek(query) > sequence.num_computed:
        release_sequence(sequence, kv_cache.prefix_cache)
        start_sequence(group, sequence, sequence.tokens, kv_cache)


def fork_sequence(group: SequenceGroup, parent: Sequence, kv_cache: KVCacheManager) -> Sequence:
    """A new sequence with the tokens of its parent, sharing all its pages (copy-on-write)."""
    child = Sequence(0, list(parent.tokens), parent.num_prompt)
    share_pages(group, parent, child, kv_cache.prefix_cache)
    return child


def share_pages(
    group: SequenceGroup, parent: Sequence, child: Sequence, prefix_cache: PrefixCache
) -> None:
    """Make the child continue from the parent's rows: all pages are shared, including the last."""
    assert parent.tables is not None and parent.match is not None, "a parent that does not run"
    child.tables = parent.tables.fork(group.next_owner(), parent.num_computed)
    child.match = prefix_cache.fork(parent.match)
    child.num_computed = parent.num_computed


def release_sequence(sequence: Sequence, prefix_cache: PrefixCache) -> None:
    """Free every page; cached pages stay in the prefix cache, unlocked."""
    if sequence.tables is not None and sequence.match is not None:
        prefix_cache.release(sequence.match, sequence.tables.release())
    sequence.tables = sequence.match = None
    sequence.num_computed = 0
