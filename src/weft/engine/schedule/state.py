"""All that the scheduler knows between two steps: the jobs, who waits, who runs, the memory."""

from __future__ import annotations

from weft.cache.kv_cache_manager import KVCacheManager
from weft.engine.schedule.admission import let_go
from weft.engine.schedule.order import Waiting
from weft.engine.schedule.request import Job, Request
from weft.engine.schedule.settings import SchedulerConfig
from weft.engine.schedule.statistics import Statistics


class State:
    """A job is in `jobs` from its arrival to its end, and waits or runs or is embedded now."""

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
        self.config, self.kv_cache = config, kv_cache
        self.statistics = Statistics()
        self.waiting = Waiting(kv_cache.prefix_cache, config, kv_cache.pool.page_size)
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        """In the order of admission."""
        self.num_running = 0
        """Sequences that running jobs have or will have."""
        self.num_arrived = 0

    @property
    def latest(self) -> Job:
        """The running job that was admitted last: the first to be preempted."""
        return next(reversed(self.running.values()))

    def add(self, request: Request) -> None:
        job = self.jobs[request.id] = Job(request, self.num_arrived)
        self.num_arrived += 1
        self.waiting.add(job)

    def start(self, job: Job) -> None:
        """A waiting job runs from now on."""
        self.waiting.admitted(job)
        self.running[job.request.id] = job
        self.num_running += job.request.num_sequences

    def stop(self, job: Job) -> bool:
        """A job does not run any more. False: it did not."""
        is_running = self.running.pop(job.request.id, None) is not None
        self.num_running -= job.request.num_sequences if is_running else 0
        return is_running

    def put_back(self, job: Job) -> None:
        """A running job waits again, before all others. Its pages go; what is cached stays so."""
        self.drop_pages(job)
        self.stop(job)
        self.waiting.put_back(job)

    def leave(self, job: Job) -> None:
        """A job is over; every page goes back or stays in a cache, unlocked."""
        self.drop_pages(job)
        del self.jobs[job.request.id]
        if not self.stop(job):
            self.waiting.discard(job)

    def leave_one(self, job: Job, index: int) -> None:
        """One sequence of a job is over; with the last one the job is."""
        is_led = job.request.id in self.running and job.has_followers
        for sequence in [s for s in job.sequences if s.index == index]:
            let_go(sequence, self.kv_cache.prefix_cache)
            job.sequences.remove(sequence)
        if not job.sequences:
            self.leave(job)
        elif is_led:
            self.put_back(job)  # the others may have lost the leader that they waited for

    def drop_pages(self, job: Job) -> None:
        for sequence in [*job.sequences, *job.spares]:
            let_go(sequence, self.kv_cache.prefix_cache)
        job.spares = []
        if job.source is not None:
            self.kv_cache.encoder_cache.release(job.source, job.request.id)
            job.source = None
