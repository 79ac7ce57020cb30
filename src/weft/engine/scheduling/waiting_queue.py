"""Waiting sequence groups of one API key, in the order in which they are tried: longest cached
prefix first, with aging so that no group waits forever.

    preempted   before all others, the earliest admitted first
    aged        overtaken `patience` times: in the order of arrival, and nothing before them
    the rest    of the first `order_window` arrivals: longest cached prefix, then first arrival

A request whose next two or more pages are being computed by a running group waits for them, and
finds them cached. After SGLang's longest-prefix-match with in-batch prefix caching (Zheng 2023),
which can starve requests without a cached prefix; here a group is overtaken at most `patience`
times.

The bound. Let q groups wait or run when a request arrives, and let the oldest running group finish
within T steps (it is never preempted, and computes at least one token in each). One group finishes
every T steps, so the request is admitted after at most (q + patience) * T steps.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice

from weft.cache.prefix_cache import NoPrefixCache, PrefixCache
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.sequence import SequenceGroup

MIN_SHARED_PAGES = 2
"""Number of common pages that are worth waiting for."""

PrefillSpan = tuple[str, int, tuple[int, ...]]
"""Pages to compute: namespace, start, tokens. Groups with the same cached prefix and the same span
after it compute the same rows."""


class WaitingQueue:
    """Groups that do not run. `preempted` ones go first."""

    def __init__(self, prefix_cache: PrefixCache, config: SchedulerConfig, page_size: int) -> None:
        self.prefix_cache = prefix_cache
        self.window, self.patience = config.order_window, config.patience
        self.span_len = MIN_SHARED_PAGES * page_size
        self.preempted: deque[SequenceGroup] = deque()
        self.arrived: OrderedDict[str, SequenceGroup] = OrderedDict()

    def __len__(self) -> int:
        return len(self.preempted) + len(self.arrived)

    def __iter__(self) -> Iterator[SequenceGroup]:
        yield from self.preempted
        yield from self.arrived.values()

    def add(self, group: SequenceGroup) -> None:
        self.arrived[group.request.id] = group

    def requeue(self, group: SequenceGroup) -> None:
        """Put a preempted group at the front."""
        self.preempted.appendleft(group)

    def rebuild(self, groups: list[SequenceGroup], admitted: list[SequenceGroup]) -> None:
        """Queue exactly these groups. Those that were admitted before go first, in the order of
        `admitted` as far as they are there."""
        names = {group.request.id for group in groups}
        order = {one.request.id: one for one in (*admitted, *groups) if one.was_admitted}
        self.preempted = deque(group for name, group in order.items() if name in names)
        new = sorted((one for one in groups if not one.was_admitted), key=lambda one: one.arrival)
        self.arrived = OrderedDict((group.request.id, group) for group in new)

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group if it is in the queue."""
        if self.arrived.pop(group.request.id, None) is None and group in self.preempted:
            self.preempted.remove(group)

    def candidates(self) -> list[SequenceGroup]:
        """Groups in the order in which they are tried."""
        if self.preempted:
            return [*self.preempted, *self.sorted_arrivals()]
        return self.sorted_arrivals()

    def sorted_arrivals(self) -> list[SequenceGroup]:
        arrivals = list(islice(self.arrived.values(), self.window))
        return sorted(arrivals, key=self.rank)

    def rank(self, group: SequenceGroup) -> tuple[int, int]:
        """Sort key: aged groups first, then by cached length; ties by arrival."""
        if self.is_aged(group):
            return -(1 << 62), group.arrival
        return -self.prefix_cache.peek(group.prefix_query), group.arrival

    def is_aged(self, group: SequenceGroup) -> bool:
        return group.times_overtaken >= self.patience or group.was_admitted

    def is_blocked(self, group: SequenceGroup) -> bool:
        """An earlier arrival has been overtaken as often as allowed."""
        for other in islice(self.arrived.values(), self.window):
            if other.arrival >= group.arrival or group.was_admitted:
                return False
            if self.is_aged(other):
                return True
        return False

    def admitted(self, group: SequenceGroup) -> None:
        """Remove an admitted group; it has overtaken all earlier arrivals that still wait."""
        if self.arrived.pop(group.request.id, None) is None:
            self.preempted.remove(group)
            return
        for other in islice(self.arrived.values(), self.window):
            if other.arrival > group.arrival:
                break
            other.times_overtaken += 1

    def next_span(self, group: SequenceGroup) -> PrefillSpan | None:
        """The pages that a waiting group would compute first."""
        return self.prefill_span(group, self.prefix_cache.peek(group.prefix_query))

    def prefill_span(self, group: SequenceGroup, start: int) -> PrefillSpan | None:
        """Two pages of a prompt; None if it is shorter, or without a prefix cache."""
        tokens = group.prefix_query.tokens[start : start + self.span_len]
        if len(tokens) < self.span_len or isinstance(self.prefix_cache, NoPrefixCache):
            return None
        return group.namespace, start, tuple(tokens)

    def spans_of(self, groups: Iterable[SequenceGroup]) -> set[PrefillSpan | None]:
        """The pages of their prompts that running groups are computing."""
        matches = ((group, group.first.match) for group in groups)
        return {
            self.prefill_span(group, match.length) for group, match in matches if match is not None
        }
