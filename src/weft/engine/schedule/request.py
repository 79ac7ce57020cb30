"""What is asked (`Request`), and what becomes of it: a `Job` with one or more `Sequence`s.

    Request   prompt, source, max_tokens, n, beam               frozen, the caller's
    Job       a request in the engine: waits, runs, is preempted
    Sequence  tokens so far, how many of them have rows, and where those lie

n samples and beams begin as one sequence: the prompt is computed once, branches share its pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from weft.cache.encoder_cache import EncodedSource, source_key
from weft.cache.page_tables import PageTables
from weft.cache.prefix_cache import PrefixMatch, PrefixQuery


@dataclass(frozen=True)
class Request:
    """One thing that a caller wants. `Scheduler.add` refuses what can never be done."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int = 16
    source: tuple[int, ...] | None = None
    """Ids for the encoder of an encoder-decoder."""
    salt: str = ""
    """Requests with different salts share nothing, neither prefixes nor sources."""
    n: int = 1
    """Samples of the same prompt."""
    beam: int = 0
    """Above 0: a beam search of this width."""
    is_embedding: bool = False
    """The prompt runs once through an encoder and nothing is generated."""

    @property
    def source_key(self) -> str | None:
        """The name of its source in the cache."""
        return None if self.source is None else source_key(self.source, self.salt)

    @property
    def namespace(self) -> str:
        """Requests with different ones share no prefix: what a decoder keeps depends on the
        source."""
        return self.source_key or self.salt

    @property
    def num_sequences(self) -> int:
        """Sequences that it runs at most."""
        return max(self.n, self.beam)


class Sequence:
    """One line of tokens. Without tables it waits: for admission, or for the leader of its job."""

    def __init__(self, index: int, tokens: list[int], num_prompt: int) -> None:
        self.index, self.tokens, self.num_prompt = index, tokens, num_prompt
        self.num_computed = 0
        """Tokens whose rows are in the pages; the last sampled one has none yet."""
        self.tables: PageTables | None = None
        self.match: PrefixMatch | None = None

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_remaining(self) -> int:
        """Tokens to be run before the next one can be sampled."""
        return len(self.tokens) - self.num_computed


@dataclass(eq=False)
class Job:
    """A request on its way. `sequences` are those that are not finished."""

    request: Request
    arrival: int
    """Jobs are numbered in the order in which they came."""
    namespace: str = field(init=False)
    source_key: str | None = field(init=False, default=None)
    sequences: list[Sequence] = field(init=False)
    spares: list[Sequence] = field(init=False, default_factory=list)
    """Twins with pages of their own for children to come, while a plan of several passes is under
    way."""
    prefix_query: PrefixQuery = field(init=False)
    """The prompt, for looking up how much of it is cached."""
    source: EncodedSource | None = field(init=False, default=None)
    """Held while the job runs."""
    common: int = field(init=False, default=0)
    """Tokens that the leader computes before the others fork from it."""
    num_passed: int = field(init=False, default=0)
    """Later jobs that were admitted before this one."""
    was_admitted: bool = field(init=False, default=False)
    serials: count[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        request = self.request
        self.source_key = request.source_key
        self.namespace = self.source_key or request.salt
        prompt = list(request.prompt)
        self.sequences = [Sequence(0, prompt, len(prompt))]
        self.prefix_query = PrefixQuery(prompt[:], self.namespace)

    @property
    def leader(self) -> Sequence:
        return self.sequences[0]

    @property
    def has_followers(self) -> bool:
        """True while sequences wait for the leader to compute what they have in common."""
        return self.sequences[-1].tables is None

    @property
    def is_decoding(self) -> bool:
        """Every sequence needs one token run to get the next."""
        for sequence in self.sequences:  # a plain loop: this runs for every job in every step
            if sequence.tables is None or len(sequence.tokens) - sequence.num_computed != 1:
                return False
        return True

    @property
    def is_branching(self) -> bool:
        """The next step's outcome names a parent for each sequence that goes on."""
        return self.request.beam > 0 or (self.request.n > 1 and self.leader.num_generated == 0)

    def next_owner(self) -> str:
        """A new name under which tables of this job hold pages."""
        return f"{self.request.id}/{next(self.serials)}"


def common_length(sequences: list[Sequence]) -> int:
    """How many leading tokens all sequences share; each keeps one to run by itself."""
    shortest = min(len(sequence.tokens) for sequence in sequences)
    low, high = 0, shortest - 1
    first = sequences[0].tokens
    while low < high:
        middle = (low + high + 1) // 2
        is_same = all(s.tokens[low:middle] == first[low:middle] for s in sequences[1:])
        low, high = (middle, high) if is_same else (low, middle - 1)
    return low
