"""The scheduler: requests -> one plan a step. It sees numbers of pages and tokens, never a tensor.

    scheduler.add(request)
    while not scheduler.is_idle:
        plan = scheduler.plan()
        ...                                             # run it, and sample
        ended = scheduler.commit(plan, grown, branched)

Differs from vLLM's: sources, beams and samples are jobs like any other, a job's sequences are
preempted and resumed together, and cached prefixes go first without starving the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.cache.kv_cache_manager import KVCacheManager
from weft.core.errors import UsageError
from weft.engine.schedule.drafts import Drafts
from weft.engine.schedule.limits import check_request
from weft.engine.schedule.outcome import commit_job
from weft.engine.schedule.plan import Branched, BranchedFar, Chunk, Grown, Key, Plan
from weft.engine.schedule.planner import Planner
from weft.engine.schedule.request import Job, Request
from weft.engine.schedule.settings import SchedulerConfig
from weft.engine.schedule.state import State


class Scheduler:
    """One plan at a time: `plan`, then `commit` or `abandon`, then the next. Requests may come and
    go at any time; who goes while a plan is under way gives back its pages when it is over."""

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
        self.config, self.kv_cache = config, kv_cache
        self.state = State(config, kv_cache)
        self.planner = Planner(self.state)
        self.statistics = self.state.statistics
        self.in_flight: Plan | None = None
        self.leaving: list[tuple[str, int | None]] = []
        """Who was finished or cancelled while a plan was under way."""

    @property
    def is_idle(self) -> bool:
        """No request waits or runs."""
        return not self.state.jobs

    @property
    def num_waiting(self) -> int:
        return len(self.state.waiting)

    def add(self, request: Request) -> None:
        """A new request waits for its turn. Raises UsageError for one that can never be served."""
        if request.id in self.state.jobs:
            raise UsageError(f"request {request.id} is there already. Give each its own id.")
        check_request(request, self.config, self.kv_cache)
        self.state.add(request)

    def plan(self, drafts: Drafts | None = None) -> Plan:
        """Decide what the next step does. Pages are allocated; sequences do not move yet."""
        assert self.in_flight is None, "the last plan was neither committed nor abandoned"
        self.statistics.steps += 1
        self.kv_cache.pool.step = self.statistics.steps
        plan = self.in_flight = self.planner.plan(self.statistics.steps, drafts)
        self.statistics.computed_tokens += plan.num_tokens
        self.statistics.encoded_tokens += plan.num_encoder_tokens
        return plan

    def commit(
        self,
        plan: Plan,
        grown: Mapping[Key, Grown] | None = None,
        branched: Mapping[str, Branched | BranchedFar] | None = None,
    ) -> list[Key]:
        """The plan was run. `grown` holds the new tokens of each sequence that was sampled;
        `branched` what becomes of beams, and of n samples behind their prompt. Only cancelled ones
        may be missing. Returns the sequences that reached max_tokens and are therefore finished."""
        assert plan is self.in_flight, f"the plan of step {plan.step} is not the one under way"
        grown, branched = grown or {}, branched or {}
        for encoding in plan.sources:
            self.kv_cache.encoder_cache.mark_written(encoding.source)
        jobs = self.jobs_of(plan)
        for job, chunks in jobs:
            found = branched.get(job.request.id)
            commit_job(job, chunks, grown, found, self.kv_cache, self.statistics)
        self.check_outcomes(plan, grown, branched)
        ended = [key for job, _ in jobs for key in ends(job)]
        asked = [key for key, result in grown.items() if result.is_finished]
        done = [(embedding.request.id, None) for embedding in plan.embeddings]
        self.leaving += [*done, *asked, *ended]
        self.leaving += [(name, None) for name, result in branched.items() if not result.children]
        self.land()
        return ended

    def abandon(self, plan: Plan) -> None:
        """The plan could not be run: its requests wait again, as if they had been preempted."""
        assert plan is self.in_flight, f"the plan of step {plan.step} is not the one under way"
        names = {chunk.request.id for chunk in plan.chunks}
        for job in reversed([*self.state.running.values()]):
            if job.request.id in names:
                self.state.put_back(job)
        for embedding in reversed(plan.embeddings):
            self.state.waiting.put_back(self.state.jobs[embedding.request.id])
        self.land()

    def finish(self, request_id: str, index: int | None = None) -> bool:
        """A request, or one sample of it, has all it wants (or is not wanted any more). Its full
        pages stay cached. False: it had gone before."""
        is_known = request_id in self.state.jobs
        self.leaving.append((request_id, index))
        if self.in_flight is None:
            self.land()
        return is_known

    def cancel(self, request_id: str) -> bool:
        """A caller hung up, or a request failed: every page goes back, at the latest with this
        step's commit. False: it had gone before."""
        return self.finish(request_id)

    def jobs_of(self, plan: Plan) -> list[tuple[Job, list[Chunk]]]:
        """The jobs that a plan runs, with their chunks."""
        chunks: dict[str, list[Chunk]] = {}
        for chunk in plan.chunks:
            chunks.setdefault(chunk.request.id, []).append(chunk)
        return [(self.state.jobs[name], parts) for name, parts in chunks.items()]

    def check_outcomes(
        self,
        plan: Plan,
        grown: Mapping[Key, Grown],
        branched: Mapping[str, Branched | BranchedFar],
    ) -> None:
        """Who was sampled has an outcome, or is about to leave."""
        excused = {*branched, *(name for name, _ in self.leaving)}
        missing = [
            chunk.key
            for chunk in plan.chunks
            if chunk.num_samples and chunk.key not in grown and chunk.request.id not in excused
        ]
        assert not missing, f"sampled in step {plan.step}, but without an outcome: {missing}"

    def land(self) -> None:
        """No plan is under way any more: whoever is finished or cancelled leaves."""
        self.in_flight = None
        leaving, self.leaving = self.leaving, []
        for name, index in leaving:
            job = self.state.jobs.get(name)
            if job is not None and index is None:
                self.state.leave(job)
            elif job is not None and index is not None:
                self.state.leave_one(job, index)


def ends(job: Job) -> list[Key]:
    """Sequences of a job that may not become longer. Beams end by themselves: one more pass over
    their last token says how likely the end is."""
    # a search writes its end behind the last token that it may have
    limit = job.request.max_tokens + (job.request.beam > 0)
    longest = 0
    for sequence in job.sequences:  # a plain loop: this runs for every job in every step
        longest = max(longest, sequence.num_generated)
    assert longest <= limit, f"{job.request.id} has {longest} new tokens, over {limit}"
    if job.request.beam or longest < limit:
        return []
    return [Key(job.request.id, s.index) for s in job.sequences if s.num_generated == limit]
