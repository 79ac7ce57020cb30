"""A world without tensors: it runs plans on pages whose rows hold a hash of all tokens up to them.
So a chunk that reads a wrong, stale or foreign row is found at once, and the tokens that come out
are known beforehand: a function of source, tokens so far, and number of the sample."""

from __future__ import annotations

import random
import zlib
from array import array
from collections.abc import Callable
from dataclasses import replace

from weft.cache import PREFIX_CACHES
from weft.cache.events import CacheEvent, EventLog, TreeEvent
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.cache.page_tables import first_readable_block
from weft.cache.replay import ReplayedState, replay
from weft.core.registry import pick
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.audit import audit, cache_state
from weft.engine.scheduling.plan import (
    Appended,
    Child,
    Chunk,
    Forked,
    LayerRange,
    Plan,
    SequenceId,
)
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request, Sequence

END = 99
FULL = KVCacheLayout((KVCacheGroup((0, 1)),))
WINDOWS = KVCacheLayout(
    (KVCacheGroup((1,)), KVCacheGroup((0,), window=5), KVCacheGroup((2,), window=9))
)
CROSS = KVCacheLayout((KVCacheGroup((0,)), KVCacheGroup((1,), is_cross=True)))
ONLY_WINDOWS = KVCacheLayout((KVCacheGroup((0,), window=6),))


def base(request: Request) -> int:
    return hash((zlib.crc32(request.salt.encode()), request.source or ()))


def next_token(chain: int, sample: int) -> int:
    """Five tokens, so that samples and requests often write the same; now and then the end."""
    value = hash((chain, sample)) % 1009
    return END if value % 41 == 0 else value % 5


def token_score(chain: int, token: int) -> int:
    return -(hash((chain, token, 7)) % 1000)


def samples_alone(request: Request) -> list[list[int]]:
    """What a request gives when it runs by itself, one list a sample."""
    results = []
    for sample in range(request.n):
        chain, output = base(request), []
        for token in request.prompt:
            chain = hash((chain, token))
        while len(output) < request.max_tokens:
            output.append(next_token(chain, sample))
            if output[-1] == END:
                break
            chain = hash((chain, output[-1]))
        results.append(output)
    return results


Beam = tuple[int, int, list[int]]
"""Score, chain, new tokens."""


def next_beams(beams: list[Beam], width: int) -> list[tuple[int, int, int]]:
    """(score, parent, token) of the best children, best first."""
    actual = [
        (score + token_score(chain, token), parent, token)
        for parent, (score, chain, _) in enumerate(beams)
        for token in range(5)
    ]
    return sorted(actual, key=lambda one: (-one[0], one[1], one[2]))[:width]


def is_search_over(beams: list[Beam], request: Request) -> bool:
    return len(beams[0][2]) == request.max_tokens or hash((beams[0][1], 3)) % 41 == 0


def beams_alone(request: Request) -> list[list[int]]:
    chain = base(request)
    for token in request.prompt:
        chain = hash((chain, token))
    beams: list[Beam] = [(0, chain, [])]
    while not is_search_over(beams, request):
        beams = [
            (score, hash((beams[parent][1], token)), [*beams[parent][2], token])
            for score, parent, token in next_beams(beams, request.beam)
        ]
    return [tokens for _, _, tokens in beams]


class World:
    """A scheduler and the pages it plans for."""

    def __init__(
        self,
        prefix: str = "radix",
        layout: KVCacheLayout = FULL,
        num_pages: int = 64,
        page_size: int = 4,
        listen: bool = True,
        now: Callable[[], float] = lambda: 0.0,
        **settings: int | float | None,
    ) -> None:
        self.log = EventLog(None)
        self.pool = PagePool(num_pages, page_size, self.listen if listen else None)
        self.kv_cache = KVCacheManager(
            layout, self.pool, pick(PREFIX_CACHES, prefix, "prefix cache")
        )
        defaults = {"token_budget": 16, "encoder_budget": 16, "max_running": 8, "max_len": 64}
        self.config = SchedulerConfig(**(defaults | settings))
        self.scheduler = Scheduler(self.config, self.kv_cache, now)
        self.state = self.scheduler.state
        self.rows: dict[int, list[object]] = {}
        self.replayed = ReplayedState()
        self.chains: dict[SequenceId, tuple[list[int], list[int]]] = {}
        self.requests: dict[str, Request] = {}
        self.outputs: dict[SequenceId, list[int]] = {}
        self.results: dict[str, list[list[int]]] = {}
        """Outputs of requests that are done."""
        self.embedded: list[str] = []
        self.layers: dict[tuple[SequenceId, int], int] = {}
        """Sequence and slot of the chunks of which some layers are computed: how many times their
        tokens were computed by a layer."""
        self.num_layered = 0
        """Steps that computed some layers of a chunk and not the last."""

    def listen(self, event: CacheEvent) -> None:
        self.log(event)
        if isinstance(event, TreeEvent):
            return
        is_kept = event.owner in ("prefix", "sources")  # after a reset: the page was never free
        if event.kind == "alloc" and not is_kept:
            self.rows[event.page] = [None] * self.pool.page_size

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.requests[request.id] = request

    def step(self, drafts: Callable[[Request, Sequence], list[int]] | None = None) -> Plan:
        plan = self.scheduler.schedule(drafts)
        self.run_and_commit(plan)
        return plan

    def run_and_commit(self, plan: Plan) -> None:
        self.run(plan)
        appended, forked = self.sample(plan)
        at_limit = self.scheduler.commit(plan, appended, forked)
        for key, result in appended.items():
            if key in at_limit or result.is_finished:
                self.finished(key)
        for key in at_limit:
            self.finished(key)
        self.embedded += [embedding.request.id for embedding in plan.poolings]

    def run_all(self, limit: int = 2000) -> int:
        """Steps until nothing is left to do."""
        for number in range(limit):
            if self.scheduler.is_idle:
                return number
            self.step()
            self.check()
        raise AssertionError(f"{len(self.state.groups)} requests are not done after {limit} steps")

    # -- what a runner would do --

    def run(self, plan: Plan) -> None:
        reported = {(event.detail, event.page) for event in self.log.events if event.kind == "copy"}
        made = {(copy.source, copy.target) for copy in plan.copies}
        assert self.pool.listener is None or made <= reported, "a copy without an event"
        targets = [copy.target for copy in plan.copies]
        assert len(set(targets)) == len(targets), "two copies into one page"
        assert all(self.pool.counts[page] == 1 for page in targets), (
            "a copy into a page that is not held"
        )
        before = [list(self.rows[copy.source]) for copy in plan.copies]
        for copy, content in zip(plan.copies, before, strict=True):
            assert self.rows[copy.source] == content, "read by one copy, written by one before"
            nothing = [None] * (self.pool.page_size - copy.rows)
            self.rows[copy.target] = content[: copy.rows] + nothing
        for encoding in plan.sources:
            assert not encoding.source.is_written
            for group, table in enumerate(encoding.source.page_tables):
                for block, page in enumerate(table):
                    self.rows[page] = [(encoding.ids, group, block)]
        if plan.layered is not None:
            self.write_layers(plan.layered)
        for chunk in plan.chunks:
            self.write(chunk)
        for chunk in plan.chunks:
            self.check_reads(chunk)

    def chain(self, chunk: Chunk) -> list[int]:
        """Hashes of all tokens up to each one of a sequence and of its chunk."""
        (sequence,) = [
            s for s in self.state.groups[chunk.request.id].sequences if s.index == chunk.index
        ]
        tokens = sequence.tokens[: chunk.start] + chunk.tokens
        known, chain = self.chains.get(chunk.sequence_id, ([], []))
        if tokens[: len(known)] != known:
            known, chain = [], []
        value = chain[-1] if chain else base(chunk.request)
        for token in tokens[len(known) :]:
            value = hash((value, token))
            chain.append(value)
        self.chains[chunk.sequence_id] = (tokens, chain)
        return chain

    def write(self, chunk: Chunk, only_last: bool = False) -> None:
        R, chain = self.pool.page_size, self.chain(chunk)
        for group, table in enumerate(chunk.page_tables):
            for slot in range(chunk.end - 1 if only_last else chunk.start, chunk.end):
                self.rows[table[slot // R]][slot % R] = hash((chain[slot], group))

    def write_layers(self, layers: LayerRange) -> None:
        """Some layers of the rows: nobody else may hold their pages, and nobody may read them
        before the last layer, with which the chunk is written."""
        R, places = self.pool.page_size, [(one.sequence_id, one.start) for one in layers.chunks]
        before = zip(places, layers.num_computed(layers.begin), strict=True)
        for place, number in before if layers.begin else ():
            assert self.layers.get(place) == number, f"{place} skips layers"
        self.layers = dict(zip(places, layers.num_computed(layers.end), strict=True))
        self.num_layered += not layers.is_last
        for chunk in layers.chunks:
            for table in chunk.page_tables:
                for slot in range(chunk.start, chunk.end):
                    assert self.pool.counts[table[slot // R]] == 1, "a shared page is written"
                    self.rows[table[slot // R]][slot % R] = layers.begin

    def check_reads(self, chunk: Chunk) -> None:
        """All slots that the chunk's queries may read hold what was computed for these tokens."""
        R, chain = self.pool.page_size, self.chain(chunk)
        for group, table in enumerate(chunk.page_tables):
            window = self.kv_cache.windows[group]
            lowest = 0 if window is None else max(0, chunk.start - window + 1)
            for block in range(first_readable_block(chunk.start, window, R), -(-chunk.end // R)):
                low, high = max(lowest, block * R), min(chunk.end, (block + 1) * R)
                expected = [hash((value, group)) for value in chain[low:high]]
                actual = self.rows[table[block]][low - block * R : high - block * R]
                assert actual == expected, (
                    f"{chunk.sequence_id} reads foreign rows in block {block}"
                )
        if chunk.source is not None:
            for group, table in enumerate(chunk.source.page_tables):
                for block, page in enumerate(table):
                    assert self.rows[page] == [(chunk.request.source, group, block)]

    def sample(self, plan: Plan) -> tuple[dict[SequenceId, Appended], dict[str, Forked]]:
        appended: dict[SequenceId, Appended] = {}
        forked: dict[str, Forked] = {}
        beams: dict[str, list[Beam]] = {}
        for chunk in plan.chunks:
            chain = self.chain(chunk)
            group = self.state.groups[chunk.request.id]
            if not chunk.num_samples:
                continue
            if plan.num_steps > 1 and chunk.request.beam == 1:
                appended[chunk.sequence_id] = self.search_multi_step(chunk)
            elif plan.num_steps > 1:
                parts = [one for one in plan.chunks if one.request is chunk.request]
                if chunk is parts[0]:
                    forked[chunk.request.id] = Search(self, parts).run()
            elif chunk.request.beam:
                generated = group.sequences[chunk.index].tokens[len(chunk.request.prompt) :]
                score = 0
                for place, token in enumerate(generated, len(chunk.request.prompt)):
                    score += token_score(chain[place - 1], token)
                beams.setdefault(chunk.request.id, []).append((score, chain[-1], generated))
            elif chunk.num_samples > 1:
                tokens = [next_token(chain[-1], sample) for sample in range(chunk.num_samples)]
                forked[chunk.request.id] = Forked([Child(0, [token]) for token in tokens])
            else:
                appended[chunk.sequence_id] = self.accepted(chunk, chain)
        for name, actual in beams.items():
            forked[name] = self.search_step(self.requests[name], actual)
        self.note(appended, forked)
        return appended, forked

    def accepted(self, chunk: Chunk, chain: list[int]) -> Appended:
        """Drafts as long as they are what would have been sampled, and the token behind them."""
        first = len(chunk.tokens) - chunk.num_drafts
        tokens = [next_token(chain[chunk.start + first - 1], chunk.index)]
        for place in range(first, len(chunk.tokens)):
            if chunk.tokens[place] != tokens[-1] or tokens[-1] == END:
                break
            tokens.append(next_token(chain[chunk.start + place], chunk.index))
        return Appended(tokens, is_finished=tokens[-1] == END)

    def search_step(self, request: Request, beams: list[Beam]) -> Forked:
        assert len(beams) == len(self.state.groups[request.id].sequences), "beams run together"
        if is_search_over(beams, request):
            self.results[request.id] = [tokens for _, _, tokens in beams]
            return Forked([])
        return Forked([Child(p, [token]) for _, p, token in next_beams(beams, request.beam)])

    def search_multi_step(self, chunk: Chunk) -> Appended:
        """A token a pass of a search of one beam, and the rows of all of them but the last."""
        request, tokens = chunk.request, list[int]()
        before = self.state.groups[request.id].first.tokens[len(request.prompt) :]
        while len(tokens) < chunk.num_steps:
            longer = replace(chunk, tokens=[*chunk.tokens, *tokens])
            self.write(longer)
            self.check_reads(longer)
            beams = [(0, self.chain(longer)[-1], before + tokens)]
            if is_search_over(beams, request):
                self.results[request.id] = [before + tokens]
                return Appended([*tokens, END], is_finished=True)
            tokens.append(next_beams(beams, 1)[0][2])
        return Appended(tokens)

    def note(self, appended: dict[SequenceId, Appended], forked: dict[str, Forked]) -> None:
        for key, result in appended.items():
            self.outputs.setdefault(key, []).extend(result.tokens)
        for name, result in forked.items():
            if self.requests[name].n > 1:
                for index, (_, (token,), _) in enumerate(result.children):
                    self.outputs[SequenceId(name, index)] = [token]
                    if token == END:
                        self.scheduler.finish(name, index)
                        self.finished(SequenceId(name, index))

    def finished(self, key: SequenceId) -> None:
        request = self.requests[key.request_id]
        if request.beam:
            return
        done = self.results.setdefault(request.id, [[] for _ in range(request.n)])
        done[key.sequence_index] = self.outputs[key]

    # -- what must hold --

    def check(self) -> None:
        audit(self.state)
        replay(self.log.events, self.replayed)
        self.log.events.clear()
        assert self.replayed.counts == self.pool.reference_counts(), "replay differs from the pool"
        state = cache_state(self.state)
        assert self.replayed.holders == state.holders, "replay differs from the holders"
        assert self.replayed.rows == state.rows, "replay differs from the rows"
        assert self.replayed.nodes == state.nodes, "replay differs from the tree"
        for group in self.state.groups.values():
            assert group.times_overtaken <= self.config.patience, (
                f"{group.request.id} is overtaken too often"
            )
            assert not group.spares, f"{group.request.id} keeps spare pages"

    def check_results(self, cancelled: set[str]) -> None:
        """Every request gave what it gives alone."""
        for name, request in self.requests.items():
            if name in cancelled or request.is_pooling:
                continue
            alone = beams_alone(request) if request.beam else samples_alone(request)
            assert self.results[name] == alone, f"{name} differs from running alone"

    def check_empty(self) -> None:
        """Nothing leaked: all pages can be had again."""
        assert self.pool.num_free + self.pool.num_evictable == self.pool.num_usable
        pages = self.kv_cache.allocate(self.pool.num_usable, "test")
        assert pages is not None and not any(map(any, self.kv_cache.prefix_cache.block_pages()))
        self.pool.free(pages, "test")


class Search:
    """A search of several beams through the passes of a plan, one beam after the other."""

    def __init__(self, world: World, chunks: list[Chunk]) -> None:
        self.world, self.chunks, self.request = world, chunks, chunks[0].request
        self.tables = [copied(one.page_tables) for chunk in chunks for one in chunk.with_spares()]
        group = world.state.groups[self.request.id]
        assert len(self.tables) == self.request.beam == len(group.sequences) + len(group.spares)
        texts = [s.tokens[len(self.request.prompt) :] for s in group.sequences]
        self.beams = [
            (self.score(chunk, text), place, place, list[int](), text)
            for place, (chunk, text) in enumerate(zip(chunks, texts, strict=True))
        ]
        """Score, root, lane, tokens of these passes, all tokens that were written."""

    def score(self, chunk: Chunk, text: list[int]) -> int:
        chain, first = self.world.chain(chunk), len(self.request.prompt)
        return sum(token_score(chain[place - 1], one) for place, one in enumerate(text, first))

    def run(self) -> Forked:
        for number in range(1, self.chunks[0].num_steps + 1):
            chunks = [self.longer(root, lane, new) for _, root, lane, new, _ in self.beams]
            for chunk in chunks:
                self.world.write(chunk, only_last=True)
            for chunk in chunks:
                self.world.check_reads(chunk)
            ends = [self.world.chain(chunk)[-1] for chunk in chunks]
            running = [(one[0], end, one[4]) for one, end in zip(self.beams, ends, strict=True)]
            if is_search_over(running, self.request):
                self.world.results[self.request.id] = [text for _, _, text in running]
                return Forked([], number, is_preallocated=True)
            self.fork(next_beams(running, self.request.beam))
        children = [Child(root, new, lane) for _, root, lane, new, _ in self.beams]
        return Forked(children, number, is_preallocated=True)

    def longer(self, root: int, lane: int, new: list[int]) -> Chunk:
        chunk = self.chunks[root]
        return replace(chunk, page_tables=self.tables[lane], tokens=[*chunk.tokens, *new])

    def fork(self, children: list[tuple[int, int, int]]) -> None:
        free = set(range(self.request.beam)) - {self.beams[parent][2] for _, parent, _ in children}
        parents, seen, self.beams = self.beams, set[int](), []
        for score, parent, token in children:
            _, root, lane, new, text = parents[parent]
            if parent in seen:
                lane = self.copy(lane, free.pop())
            seen.add(parent)
            self.beams.append((score, root, lane, [*new, token], [*text, token]))

    def copy(self, origin: int, lane: int) -> int:
        first = self.chunks[0].start // self.world.pool.page_size
        for source, target in zip(self.tables[origin], self.tables[lane], strict=True):
            target[:first] = source[:first]
            for page, other in zip(source[first:], target[first:], strict=True):
                assert self.world.pool.counts[other] == 1, "others hold what a child writes into"
                self.world.rows[other] = list(self.world.rows[page])
        return lane


def copied(pages: list[array[int]]) -> list[array[int]]:
    return [table[:] for table in pages]


def random_request(
    rng: random.Random,
    number: int,
    layout: KVCacheLayout,
    families: list[list[int]],
    keys: tuple[str, ...] = ("",),
):
    """Prompts with shared beginnings, of lengths around page borders."""
    key = rng.choice(keys)
    if rng.random() < 0.05:
        return Request(
            f"r{number}",
            tuple(rng.choices(range(5), k=rng.randint(1, 20))),
            0,
            None,
            is_pooling=True,
            key=key,
        )
    family = rng.choice(families)
    prompt = family[: rng.randint(1, len(family))]
    if rng.random() < 0.5:
        prompt = prompt + rng.choices(range(5), k=rng.randint(1, 6))
    source = None
    if layout.cross_groups:
        source = tuple(families[rng.randrange(len(families))][: rng.randint(1, 12)])
    kind = rng.choice(["plain", "plain", "plain", "samples", "beams"])
    return Request(
        f"r{number}",
        tuple(prompt),
        rng.choice([1, 4, 9, 14, 18]),
        source,
        salt=rng.choice(["", "", "", "x"]),
        n=rng.randint(2, 3) if kind == "samples" else 1,
        beam=rng.randint(1, 3) if kind == "beams" else 0,
        key=key,
        is_streamed=kind == "plain" and rng.random() < 0.3,
    )
