"""The scheduler: requests -> one plan per step. It uses page ids and token counts, never tensors.

    scheduler.add(request)
    while not scheduler.is_idle:
        plan = scheduler.schedule()
        ...                                             # run it, and sample
        finished = scheduler.commit(plan, appended, forked)

A step computes decodes first, then prefills in chunks, then newly admitted groups, all within one
token budget, so that long prompts never delay decoding (chunked prefill: Sarathi-Serve, Agrawal
2023; vLLM V1). When pages run out, the group admitted last is preempted, and nothing is admitted in
that step. The oldest group is never preempted, so there is always progress. If every chunk is a
decode of a beam search, the plan covers several decode steps (multi-step scheduling). API keys
share the engine by the tokens that were computed for them (fair_queue.py).

Differs from vLLM's: sources, beams and samples are scheduled like any other request, the sequences
of a group are preempted and resumed together, and cached prefixes go first without starving others.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from weft.cache.kv_cache_manager import KVCacheManager
from weft.core.errors import UsageError
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.admission import check_request
from weft.engine.scheduling.audit import check_pages
from weft.engine.scheduling.commit import commit_group, sequences_at_limit
from weft.engine.scheduling.plan import Appended, Chunk, Forked, Plan, ProposeDrafts, SequenceId
from weft.engine.scheduling.planner import Planner
from weft.engine.scheduling.scheduler_state import SchedulerLoad, SchedulerState
from weft.engine.scheduling.sequence import Request, RequestTimes, SequenceGroup

log = logging.getLogger(__name__)

STORM_STEPS = 128
STORM_PREEMPTIONS = 32
"""Number of preemptions within a number of steps that is reported as a preemption storm."""


class Scheduler:
    """One plan at a time: `schedule`, then `commit` or `rollback`, then the next. Requests may be
    added and cancelled at any time; the pages of a request that is cancelled while a plan is in
    flight are freed when that plan is committed or rolled back."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config, self.kv_cache = config, kv_cache
        self.state = SchedulerState(config, kv_cache, now)
        self.planner = Planner(self.state)
        self.preemptions = PreemptionMonitor()
        self.statistics = self.state.statistics
        self.in_flight: Plan | None = None
        self.began_at = 0.0
        """Time at which the plan in flight was made."""
        self.had_queue = False
        """Whether requests waited when it was made."""
        self.num_cached = 0
        """Cached tokens of the requests that it admitted."""
        self.finished_in_flight: list[tuple[str, int | None]] = []
        """Requests or samples that finished or were cancelled while a plan was in flight."""

    @property
    def is_idle(self) -> bool:
        """No request waits or runs."""
        return not self.state.groups

    @property
    def num_waiting(self) -> int:
        return len(self.state.waiting)

    def add(self, request: Request) -> None:
        """Queue a request. Raises a UsageError for one that can never be served."""
        if request.id in self.state.groups:
            raise UsageError(f"request id {request.id} is in use. Give each request its own id.")
        check_request(request, self.config, self.kv_cache)
        self.state.add(request)

    def schedule(self, propose: ProposeDrafts | None = None) -> Plan:
        """Plan the next step. Allocates pages; sequences change only at `commit`."""
        assert self.in_flight is None, "the last plan was neither committed nor rolled back"
        statistics = self.statistics
        self.began_at, self.had_queue = self.state.now(), bool(self.state.waiting)
        statistics.steps += 1
        self.kv_cache.pool.step = statistics.steps
        num_cached = statistics.cached_tokens + statistics.cached_source_tokens
        plan = self.in_flight = self.planner.plan(statistics.steps, propose)
        self.num_cached = statistics.cached_tokens + statistics.cached_source_tokens - num_cached
        statistics.computed_tokens += plan.num_tokens
        statistics.encoded_tokens += plan.num_encoder_tokens
        if plan.num_preempted and not self.config.preempt_every:
            self.preemptions.record(plan, self.state)
        if log.isEnabledFor(logging.DEBUG):
            log_plan(plan, self.state, self.num_cached)
        return plan

    def commit(
        self,
        plan: Plan,
        appended: Mapping[SequenceId, Appended] | None = None,
        forked: Mapping[str, Forked] | None = None,
    ) -> list[SequenceId]:
        """Apply the results of a plan that was run: `appended` for each sampled sequence, `forked`
        for each beam search and for n samples after their prompt. Only cancelled requests may be
        missing. Returns the sequences that reached max_tokens and are therefore finished."""
        assert plan is self.in_flight, f"the plan of step {plan.step} is not the one in flight"
        appended, forked = appended or {}, forked or {}
        for scheduled in plan.sources:
            self.kv_cache.encoder_cache.mark_written(scheduled.source)
        groups = self.groups_of(plan)
        for group, chunks in groups:
            result = forked.get(group.request.id)
            commit_group(group, chunks, appended, result, self.kv_cache, self.statistics)
        if plan.layered is not None:
            self.state.advance_layers(plan.layered)
        self.check_results(plan, appended, forked)
        at_limit = [key for group, _ in groups for key in sequences_at_limit(group)]
        stopped = [key for key, result in appended.items() if result.is_finished]
        pooled = [(scheduled.request.id, None) for scheduled in plan.poolings]
        self.finished_in_flight += [*pooled, *stopped, *at_limit]
        self.finished_in_flight += [
            (name, None) for name, result in forked.items() if not result.children
        ]
        self.apply_finished()
        self.measure(plan)
        return at_limit

    def measure(self, plan: Plan) -> None:
        """Record the time of a plan that was committed."""
        state, now = self.state, self.state.now()
        state.step_times.add(plan, now - self.began_at)
        num_tokens = plan.num_prompt_tokens + self.num_cached
        state.drain_rate.add(num_tokens, plan.num_admitted, now, self.had_queue, self.is_idle)

    def rollback(self, plan: Plan) -> None:
        """Discard a plan that could not be run: its requests are preempted."""
        assert plan is self.in_flight, f"the plan of step {plan.step} is not the one in flight"
        names = set(plan.request_ids)
        for group in reversed([*self.state.running.values()]):
            if group.request.id in names:
                self.state.requeue(group)
        for scheduled in reversed(plan.poolings):
            self.state.waiting.requeue(self.state.groups[scheduled.request.id])
        self.apply_finished()

    def recover(self, only: frozenset[str] | None = None) -> None:
        """Restore consistency after an exception at any point: all requests are preempted, and
        pages are recounted. If a cache is inconsistent because one of its operations was
        interrupted, the caches are emptied. `only`: all other requests do not run until the next
        `recover`."""
        for name, index in self.finished_in_flight:
            if index is None:
                self.state.groups.pop(name, None)
        self.state.requeue_all(only)
        try:
            self.kv_cache.recount()
            check_pages(self.state)
        except Exception as error:
            log.warning("caches=emptied reason='interrupted while they changed' error=%r", error)
            self.kv_cache.reset()
        self.finished_in_flight = []
        self.in_flight = None

    def finish(self, request_id: str, index: int | None = None) -> bool:
        """Finish a request, or one sample of it. Its full pages stay cached. Returns False if it is
        unknown."""
        is_known = request_id in self.state.groups
        self.finished_in_flight.append((request_id, index))
        if self.in_flight is None:
            self.apply_finished()
        return is_known

    def cancel(self, request_id: str) -> bool:
        """Cancel a request: its pages are freed at once, or with the commit of the plan in flight.
        Returns False if it is unknown."""
        return self.finish(request_id)

    def apply_finished(self) -> None:
        """Remove the requests that finished or were cancelled while a plan was in flight."""
        self.in_flight = None
        finished, self.finished_in_flight = self.finished_in_flight, []
        for name, index in finished:
            group = self.state.groups.get(name)
            if group is not None and index is None:
                self.state.remove(group)
            elif group is not None and index is not None:
                self.state.remove_sequence(group, index)

    def groups_of(self, plan: Plan) -> list[tuple[SequenceGroup, list[Chunk]]]:
        """The groups of a plan, with their chunks."""
        chunks: dict[str, list[Chunk]] = {}
        for chunk in plan.chunks:
            chunks.setdefault(chunk.request.id, []).append(chunk)
        return [(self.state.groups[name], parts) for name, parts in chunks.items()]

    def tokens_of(self, request_ids: Iterable[str]) -> dict[str, list[list[int]]]:
        """The tokens of all sequences of some requests, spares included. A fork replaces these
        lists and does not change them."""
        groups = self.state.groups
        return {
            name: [one.tokens for one in (*groups[name].sequences, *groups[name].spares)]
            for name in request_ids
            if name in groups
        }

    def times_of(self, request_id: str) -> RequestTimes | None:
        """Times of an active request; the object stays valid when the request has finished. None:
        the request is not active."""
        group = self.state.groups.get(request_id)
        return None if group is None else group.times

    def load(self) -> SchedulerLoad:
        """The waiting work and the measured rates. May be called from any thread."""
        return self.state.load()

    def check_results(
        self, plan: Plan, appended: Mapping[SequenceId, Appended], forked: Mapping[str, Forked]
    ) -> None:
        """Every sampled sequence has a result, or was cancelled."""
        excused = {*forked, *(name for name, _ in self.finished_in_flight)}
        missing = [
            chunk.sequence_id
            for chunk in plan.chunks
            if chunk.num_samples
            and chunk.sequence_id not in appended
            and chunk.request.id not in excused
        ]
        assert not missing, f"sampled in step {plan.step}, but without a result: {missing}"


class PreemptionMonitor:
    """Warns about preemption storms: a KV cache that is too small makes the engine recompute the
    same tokens again and again."""

    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=STORM_PREEMPTIONS)
        """The steps of the last preemptions."""
        self.next_warning = 0

    def record(self, plan: Plan, state: SchedulerState) -> None:
        """Count the preemptions of a plan; at most one warning in `STORM_STEPS` steps."""
        self.steps.extend([plan.step] * plan.num_preempted)
        is_storm = len(self.steps) == STORM_PREEMPTIONS and self.steps[0] > plan.step - STORM_STEPS
        if is_storm and plan.step >= self.next_warning:
            self.next_warning = plan.step + STORM_STEPS
            log.warning(
                "preemption storm: preemptions=%d steps=%d running=%d pages=%d. The KV cache is "
                "too small for the running requests, which are recomputed. Raise the KV cache size "
                "(cache_gib, --cache) or lower max_running.",
                STORM_PREEMPTIONS,
                plan.step - self.steps[0] + 1,
                len(state.running),
                state.kv_cache.pool.num_usable,
            )


def log_plan(plan: Plan, state: SchedulerState, num_cached: int) -> None:
    """One DEBUG line per step."""
    decodes = [chunk for chunk in plan.chunks if len(chunk.tokens) - chunk.num_drafts == 1]
    num_decode_tokens = sum(len(chunk.tokens) for chunk in decodes)
    log.debug(
        "step=%d prefill_tokens=%d decode_sequences=%d num_steps=%d encoder_tokens=%d "
        "cached_tokens=%d free_pages=%d evictable_pages=%d waiting=%d running=%d preempted=%d",
        plan.step,
        plan.num_tokens - num_decode_tokens,
        len(decodes),
        plan.num_steps,
        plan.num_encoder_tokens,
        num_cached,
        state.kv_cache.pool.num_free,
        state.kv_cache.pool.num_evictable,
        len(state.waiting),
        len(state.running),
        plan.num_preempted,
    )
