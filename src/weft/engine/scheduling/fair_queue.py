"""Waiting sequence groups of all API keys: one `WaitingQueue` per key, and the order of the keys.

Keys are served in the order of their virtual token counters, lowest first (VTC: Sheng 2024). A
counter is the number of tokens computed for a key; a new token counts OUTPUT_WEIGHT times as much
as a prompt token. A key is active while it has a waiting or running request. A key that becomes
active starts at the lowest counter of the active keys, or at its own if that is higher, so that
idle time earns no credit. When no key is active, the counters are cleared.

Differs from the paper: prompts are counted chunk by chunk when they are computed, so cached tokens
are free and a long prompt does not delay its key before it has run; and a key without a running
request does not wait for a free place (planner.py).

With one active key the order is that of its `WaitingQueue`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from weft.engine.scheduling.plan import Chunk, PlanBuilder
from weft.engine.scheduling.sequence import SequenceGroup
from weft.engine.scheduling.waiting_queue import WaitingQueue

OUTPUT_WEIGHT = 2
"""Weight of a new token relative to a prompt token: it takes a decode step, while a prompt token is
part of a chunk."""


class FairQueue:
    """The waiting queues of the active keys, and the tokens that were computed for each key."""

    def __init__(self, make_queue: Callable[[], WaitingQueue]) -> None:
        self.make_queue = make_queue
        self.queues: dict[str, WaitingQueue] = {}
        """Waiting queues by key; at least those of the keys with waiting groups."""
        self.num_groups: Counter[str] = Counter()
        """Number of waiting and running groups, by active key."""
        self.served: dict[str, float] = {}
        """Virtual token counters, including those of inactive keys."""

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __bool__(self) -> bool:
        return any(self.queues.values())

    def __iter__(self) -> Iterator[SequenceGroup]:
        for queue in self.queues.values():
            yield from queue

    @property
    def has_one_key(self) -> bool:
        """At most one key is active."""
        return len(self.num_groups) <= 1

    @property
    def preempted(self) -> list[SequenceGroup]:
        """Preempted groups of all keys, those of each key in their order."""
        return [group for queue in self.queues.values() for group in queue.preempted]

    def queue_of(self, group: SequenceGroup) -> WaitingQueue:
        """The queue of a group's key."""
        key = group.request.key
        if key not in self.queues:
            self.queues[key] = self.make_queue()
        return self.queues[key]

    def arrive(self, group: SequenceGroup) -> None:
        """Queue a new group."""
        key = group.request.key
        if key not in self.num_groups:
            lowest = min((self.served[one] for one in self.num_groups), default=0.0)
            self.served[key] = max(lowest, self.served.get(key, 0.0))
        self.num_groups[key] += 1
        self.queue_of(group).add(group)

    def leave(self, group: SequenceGroup) -> None:
        """Record that a group has finished. Call `remove` too if it may be in the queue."""
        key = group.request.key
        self.num_groups[key] -= 1
        if self.num_groups[key] <= 0:
            del self.num_groups[key]
            self.queues.pop(key, None)
        if not self.num_groups:
            self.served.clear()

    def requeue(self, group: SequenceGroup) -> None:
        """Put a preempted group at the front of its key's queue."""
        self.queue_of(group).requeue(group)

    def admitted(self, group: SequenceGroup) -> None:
        """Remove an admitted group."""
        self.queue_of(group).admitted(group)

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group if it is in the queue."""
        self.queue_of(group).remove(group)

    def rebuild(
        self,
        groups: list[SequenceGroup],
        admitted: list[SequenceGroup],
        active: Iterable[SequenceGroup],
    ) -> None:
        """Queue exactly these groups, as `WaitingQueue.rebuild` does. `active`: all groups,
        including those left out of the queue."""
        self.num_groups = Counter(group.request.key for group in active)
        self.served = {key: self.served.get(key, 0.0) for key in self.num_groups}
        self.queues = {}
        for key in dict.fromkeys(group.request.key for group in groups):
            queue = self.queues[key] = self.make_queue()
            of_key = [group for group in groups if group.request.key == key]
            queue.rebuild(of_key, [group for group in admitted if group.request.key == key])

    def waiting_keys(self, planned: Mapping[str, float] | None = None) -> list[str]:
        """Keys with waiting groups, lowest counter first, ties by the arrival of the first group.
        `planned`: tokens to add to the counters."""
        planned = planned or {}
        keys = [key for key, queue in self.queues.items() if queue]

        def rank(key: str) -> tuple[float, int]:
            first = next(iter(self.queues[key]))
            return self.served.get(key, 0.0) + planned.get(key, 0.0), first.arrival

        return sorted(keys, key=rank)

    def count(self, builder: PlanBuilder) -> None:
        """Add the tokens of a plan to the counters, if several keys are active."""
        if len(self.served) > 1:
            for key, tokens in planned_tokens(builder).items():
                self.served[key] = self.served.get(key, 0.0) + tokens


def planned_tokens(builder: PlanBuilder) -> Counter[str]:
    """Weighted tokens of a plan, by key."""
    tokens: Counter[str] = Counter(builder.encoder_tokens)
    for chunks in builder.chunks.values():
        if chunks:
            tokens[chunks[0].request.key] += chunk_tokens(chunks)
    return tokens


def chunk_tokens(chunks: Iterable[Chunk]) -> int:
    """Weighted tokens of some chunks."""
    return sum(
        (len(chunk.tokens) + (OUTPUT_WEIGHT - 1 if chunk.num_samples else 0)) * chunk.num_steps
        for chunk in chunks
    )
