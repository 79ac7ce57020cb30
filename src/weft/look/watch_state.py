"""The state of an engine between two steps, for the live view: an engine -> pages and prefix tree;
its outputs -> samples with their tokens and alternatives.

    read_cache(engine)            CacheState: every held page with its filled rows, the radix tree
    WatchLog.add(step, output)    what a step added to the samples

Reading changes nothing: no lock, no access time, no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp

from weft.cache.encoder_cache import OWNER as SOURCES
from weft.cache.events import PREFIX
from weft.cache.radix_cache import RadixCache
from weft.cache.replay import TreeNode
from weft.engine.engine import Engine
from weft.engine.logprobs import TokenLogprob
from weft.engine.request import RequestOutput
from weft.look.terminal import printable, visible
from weft.text.tokenizer import Tokenizer

NUM_ALTERNATIVES = 3
"""Tokens shown beside the chosen one."""


@dataclass(frozen=True)
class PageState:
    """One page that is not free."""

    page: int
    num_rows: int
    """Filled leading rows."""
    num_tables: int
    """Sequences and sources that hold it."""
    is_cached: bool
    """A cache holds it too; without a table it is evicted when pages are needed."""


@dataclass(frozen=True)
class NestedNode:
    """A node of the radix tree with its children; a root has no tokens."""

    tokens: tuple[int, ...]
    num_pages: int
    num_locks: int
    """Sequences that end at or below it."""
    children: tuple[NestedNode, ...]


@dataclass(frozen=True)
class CacheState:
    """The KV cache between two steps."""

    step: int
    page_size: int
    num_usable: int
    """All pages that can be allocated."""
    pages: tuple[PageState, ...]
    """Held pages, by number."""
    roots: tuple[NestedNode, ...] | None
    """The radix tree, one root per namespace; None: the prefix cache is of another kind."""
    hit_tokens: int
    """Prompt tokens that were found in the prefix cache."""
    num_evicted: int


def read_cache(engine: Engine) -> CacheState:
    """The pages and the prefix tree of an engine that is between two steps."""
    kv_cache, state = engine.kv_cache, engine.cache_state()
    caches = {PREFIX, SOURCES}
    pages = tuple(
        PageState(
            page,
            state.rows[page],
            sum(number for owner, number in owners.items() if owner not in caches),
            not caches.isdisjoint(owners),
        )
        for page, owners in sorted(state.holders.items())
    )
    has_tree = isinstance(kv_cache.prefix_cache, RadixCache)
    return CacheState(
        kv_cache.pool.step,
        kv_cache.pool.page_size,
        kv_cache.pool.num_usable,
        pages,
        nested(state.nodes) if has_tree else None,
        engine.scheduler.state.statistics.cached_tokens,
        kv_cache.num_evicted,
    )


def nested(nodes: Mapping[int, TreeNode]) -> tuple[NestedNode, ...]:
    """The roots with their children. Without recursion: a long conversation is a deep tree."""
    children: dict[int | None, list[int]] = {}
    for index, node in nodes.items():
        children.setdefault(node.parent, []).append(index)
    order = children.get(None, [])[:]
    for index in order:  # children are appended while it runs
        order.extend(children.get(index, ()))
    done: dict[int, NestedNode] = {}
    for index in reversed(order):
        node = nodes[index]
        num_pages = sum(1 for block in node.blocks for page in block if page)
        below = tuple(done[child] for child in children.get(index, ()))
        done[index] = NestedNode(tuple(node.tokens), num_pages, node.locks, below)
    return tuple(done[index] for index in children.get(None, ()))


def token_label(tokenizer: Tokenizer, index: int, is_ascii: bool = False) -> str:
    """A token in readable form: its text with visible spaces, or the bytes of an incomplete
    character as hexadecimal numbers, <E8 8B>."""
    target = tokenizer.target
    if index >= target.vocab_size:
        return f"<id {index}>"
    content = target.token_bytes([index])[0]
    try:
        return visible(content.decode("utf-8"), is_ascii) or target.pieces([index])[0]
    except UnicodeDecodeError:
        return f"<{content.hex(' ').upper()}>"


def run_label(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Consecutive tokens in readable form; bytes of incomplete characters at the ends of the run
    are escaped, \\xe8."""
    target = tokenizer.target
    known = [index for index in ids if index < target.vocab_size]
    return printable(b"".join(target.token_bytes(known)).decode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class WatchedToken:
    """A chosen token with its probability and the most likely others, before temperature."""

    step: int
    sample: int
    label: str
    probability: float
    others: tuple[tuple[str, float], ...]


@dataclass
class WatchedSample:
    """One text that is being generated."""

    prompt: str
    text: str = ""
    num_tokens: int = 0
    reason: str | None = None
    """Why it ended; None while it runs."""


@dataclass
class WatchLog:
    """All samples of some requests, and the tokens of all of them in the order of their steps."""

    tokenizer: Tokenizer
    is_ascii: bool = False
    samples: list[WatchedSample] = field(default_factory=list)
    tokens: list[WatchedToken] = field(default_factory=list)
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    """The place of a sample in `samples`, by request id and index."""

    def add_request(self, request_id: str, prompt: str, n: int) -> None:
        for index in range(n):
            self.places[request_id, index] = len(self.samples)
            self.samples.append(WatchedSample(prompt))

    def add(self, step: int, output: RequestOutput) -> list[WatchedToken]:
        """Add the output of one step; returns its tokens, an end token included."""
        place = self.places[output.request_id, output.index]
        sample = self.samples[place]
        sample.text += output.text
        sample.num_tokens += len(output.tokens)
        if output.error is not None:
            sample.reason = output.error
        elif output.finish is not None:
            sample.reason = output.finish.reason
        added = [self.watched(step, place, one) for one in output.logprobs]
        self.tokens += added
        return added

    def watched(self, step: int, place: int, one: TokenLogprob) -> WatchedToken:
        others = [
            (token_label(self.tokenizer, index, self.is_ascii), exp(logprob))
            for index, logprob in one.top
            if index != one.id
        ]
        label = token_label(self.tokenizer, one.id, self.is_ascii)
        return WatchedToken(step, place, label, exp(one.logprob), tuple(others[:NUM_ALTERNATIVES]))
