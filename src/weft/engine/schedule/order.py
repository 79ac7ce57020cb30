"""Who waits, and whose turn it is: longest cached prefix first, and nobody waits for ever.

    preempted   first of all, those admitted earliest first
    aged        passed over `patience` times: in the order they came, and nobody before them
    the rest    of the `order_window` that came first: longest cached prefix, then who came first

A request that would compute the same two or more pages as one that is computing them now waits for
it, and finds them cached. After SGLang's longest-prefix-first with its in-batch trick (Zheng 2024),
which starves requests without a cached prefix; here one is overtaken at most `patience` times.

The bound. Let q jobs wait or run when a request comes, and let a job that is the oldest one running
be done within T steps (it is never preempted, and runs at least a token in each). One job is done
every T steps, so the request is admitted after at most (q + patience) * T steps.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice

from weft.cache.prefix_cache import NoPrefixCache, PrefixCache
from weft.engine.schedule.request import Job
from weft.engine.schedule.settings import SchedulerConfig

MIN_SHARED_PAGES = 2
"""So many pages in common are worth waiting for."""

Run = tuple[str, int, tuple[int, ...]]
"""Pages to be computed: namespace, where they begin, their tokens. Who has the same cached prefix
and the same run behind it will compute the same rows."""


class Waiting:
    """Jobs that are not running. `preempted` ones go before all others."""

    def __init__(self, prefix: PrefixCache, config: SchedulerConfig, page_size: int) -> None:
        self.prefix, self.window, self.patience = prefix, config.order_window, config.patience
        self.shared_len = MIN_SHARED_PAGES * page_size
        self.preempted: deque[Job] = deque()
        self.arrived: OrderedDict[str, Job] = OrderedDict()

    def __len__(self) -> int:
        return len(self.preempted) + len(self.arrived)

    def __iter__(self) -> Iterator[Job]:
        yield from self.preempted
        yield from self.arrived.values()

    def add(self, job: Job) -> None:
        self.arrived[job.request.id] = job

    def put_back(self, job: Job) -> None:
        """A preempted job goes to the front."""
        self.preempted.appendleft(job)

    def discard(self, job: Job) -> None:
        """Take a job out if it is here."""
        if self.arrived.pop(job.request.id, None) is None and job in self.preempted:
            self.preempted.remove(job)

    def in_turn(self) -> list[Job]:
        """Jobs in the order in which they are to be tried."""
        if self.preempted:
            return [*self.preempted, *self.ranked()]
        return self.ranked()

    def ranked(self) -> list[Job]:
        candidates = list(islice(self.arrived.values(), self.window))
        return sorted(candidates, key=self.rank)

    def rank(self, job: Job) -> tuple[int, int]:
        """Aged ones before all lengths; equal ones in the order they came."""
        if self.is_aged(job):
            return -(1 << 62), job.arrival
        return -self.prefix.peek(job.prefix_query), job.arrival

    def is_aged(self, job: Job) -> bool:
        return job.num_passed >= self.patience or job.was_admitted

    def is_barred(self, job: Job) -> bool:
        """Somebody who came before it may not be passed over once more."""
        for other in islice(self.arrived.values(), self.window):
            if other.arrival >= job.arrival or job.was_admitted:
                return False
            if self.is_aged(other):
                return True
        return False

    def admitted(self, job: Job) -> None:
        """Take a job out; whoever came before it and still waits was passed over once more."""
        if self.arrived.pop(job.request.id, None) is None:
            self.preempted.remove(job)
            return
        for other in islice(self.arrived.values(), self.window):
            if other.arrival > job.arrival:
                break
            other.num_passed += 1

    def next_run(self, job: Job) -> Run | None:
        """The pages that a waiting job would compute first."""
        return self.run_behind(job, self.prefix.peek(job.prefix_query))

    def run_behind(self, job: Job, start: int) -> Run | None:
        """Two pages of a prompt; None where it is shorter, or where nothing is ever shared."""
        run = job.prefix_query.tokens[start : start + self.shared_len]
        if len(run) < self.shared_len or isinstance(self.prefix, NoPrefixCache):
            return None
        return job.namespace, start, tuple(run)

    def runs_of(self, jobs: Iterable[Job]) -> set[Run | None]:
        """The pages that running jobs are computing of their prompts."""
        matches = ((job, job.leader.match) for job in jobs)
        return {self.run_behind(job, match.length) for job, match in matches if match is not None}
