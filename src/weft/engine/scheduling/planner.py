"""`Planner`: the plan of one step.

    decodes      one token per sequence of every decoding group, and drafts; streams that have just
                 begun may wait for short prompts (stream_start.py)
    prefills     chunks of running groups, within the rest of the token budget and the latency
                 budget (latency_budget.py)
    admission    waiting groups, until pages, tokens, time or max_running are used up
    layers       prefills too long for one step are divided by layers (layered_prefill.py); until
                 their last layer, no others begin
    multi-step   further decode steps if every chunk is a decode of a beam search

With several API keys (fair_queue.py), running prefills and admission follow the virtual token
counters, and a key without a running request gets one admitted at once:

    sequences: beyond max_running, up to one token of the budget per sequence
    tokens: half of those that running prefills would have used
    pages: from the key with the most pages, whose last admitted group is preempted. The first group
    of a key is not preempted for another key, so every key makes progress
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.cache.page_tables import PageCopy
from weft.engine.scheduling.admission import Admission, AdmissionResult
from weft.engine.scheduling.commit import sequences_of
from weft.engine.scheduling.fair_queue import chunk_tokens, planned_tokens
from weft.engine.scheduling.latency_budget import LatencyBudget
from weft.engine.scheduling.layered_prefill import LayeredPrefill
from weft.engine.scheduling.plan import (
    Chunk,
    DraftBudget,
    MultiStepGroup,
    Plan,
    PlanBuilder,
    ProposeDrafts,
    SequenceId,
    can_run_multi_step,
    next_chunks,
)
from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import SequenceGroup
from weft.engine.scheduling.stream_start import StreamStart, has_begun
from weft.engine.scheduling.waiting_queue import WaitingQueue

MEASURE_EVERY = 16
"""While a stream decodes, one step in this many has no prefills."""


class Planner:
    """Makes the plan of a step. The only state between plans is since when streams wait."""

    def __init__(self, state: SchedulerState) -> None:
        self.state, self.config, self.kv_cache = state, state.config, state.kv_cache
        self.latency = LatencyBudget(self.config, state.step_times)
        """The latency budget of the current plan."""
        self.stream_start = StreamStart(state)
        self.admission = Admission(state.config, state.kv_cache, state.statistics, state.now)

    def plan(self, step: int, propose: ProposeDrafts | None) -> Plan:
        builder = PlanBuilder(step, self.config.token_budget, self.config.encoder_budget)
        self.force_preemption(builder)
        num_forced = builder.num_preempted
        hold_seconds = self.stream_start.seconds()
        self.schedule_decodes(builder, propose, hold_seconds > 0.0)
        self.limit_latency(builder, hold_seconds)
        if self.latency.has_stream and step % MEASURE_EVERY == 0:
            pass  # the time of a step that only decodes changes with the load and the contexts
        elif self.state.layered is not None:
            self.schedule_layers(builder)
        else:
            self.schedule_prefills(builder)
            if builder.num_preempted == num_forced and self.state.waiting:
                self.admit(builder)
            self.divide_layers(builder)
        if hold_seconds and builder.is_empty:  # the prompts wait for pages
            self.schedule_decodes(builder, propose)
        if self.config.num_steps > 1 and builder.layered is None:
            self.plan_multi_step(builder)
        self.state.waiting.count(builder)
        self.state.statistics.preempted += builder.num_preempted
        return builder.build()

    def schedule_decodes(
        self, builder: PlanBuilder, propose: ProposeDrafts | None, holds_streams: bool = False
    ) -> None:
        """Every decoding group computes one token per sequence, and drafts if the budget allows.
        `holds_streams`: except for streams that have begun."""
        groups = [group for group in self.state.running.values() if group.is_decoding]
        if holds_streams:
            groups = [group for group in groups if not has_begun(group)]
        drafts = None
        if propose is not None:
            num_left = builder.budget - sum(len(group.sequences) for group in groups)
            drafts = DraftBudget(propose, num_left, self.state.num_running, self.kv_cache)
        for group in groups:
            if group.request.id not in self.state.running:
                continue
            if drafts is None and group.request.n == 1 and len(group.sequences) <= builder.budget:
                self.schedule_decode(group, builder)
                continue
            chunks = next_chunks(group, builder.budget)
            if drafts is not None:
                for sequence, chunk in zip(sequences_of(group, chunks), chunks, strict=True):
                    drafts.add_drafts(group, sequence, chunk)
            self.schedule_chunks(group, chunks, builder)

    def limit_latency(self, builder: PlanBuilder, hold_seconds: float) -> None:
        """Set the latency budget of the prefills. `hold_seconds`: seconds for which streams
        wait."""
        decodes = [chunk for chunks in builder.chunks.values() for chunk in chunks]
        has_stream = self.state.num_streamed > 0 and any(
            chunk.request.is_streamed for chunk in decodes
        )
        self.latency = self.latency_budget(len(decodes), has_stream)
        if hold_seconds:
            self.latency.limit(hold_seconds)
        builder.encoder_budget = min(builder.encoder_budget, self.latency.num_encoder_tokens)

    def schedule_decode(self, group: SequenceGroup, builder: PlanBuilder) -> None:
        """`schedule_chunks` for a group whose sequences compute one token each, the most frequent
        case, in half the time."""
        request, copies, chunks = group.request, list[PageCopy](), list[Chunk]()
        for sequence in group.sequences:
            tables, start = sequence.tables, sequence.num_computed
            assert tables is not None, f"{request.id} runs without page tables"
            num_needed = tables.num_pages_needed(start, start + 1)
            if num_needed:
                new_pages = self.allocate_or_preempt(num_needed, tables.owner, group, builder)
                if new_pages is None:
                    return
                copies += tables.add_pages(start, start + 1, new_pages)
            key, last = SequenceId(request.id, sequence.index), sequence.tokens[-1:]
            chunks.append(Chunk(request, key, start, last, 0, 1, tables.by_group, group.source))
        builder.add(group, chunks, copies)

    def plan_multi_step(self, builder: PlanBuilder) -> None:
        """Extend the plan to several decode steps if every chunk allows it. Their pages are
        allocated now, within the limits of admission."""
        groups = [(self.state.running[name], chunks) for name, chunks in builder.chunks.items()]
        if builder.poolings or not can_run_multi_step(groups):
            return
        num_steps = self.max_num_steps(builder)
        extended = [MultiStepGroup.of(*pair, num_steps) for pair in groups]
        num_needed = sum(one.num_pages for one in extended)
        has_pages = num_needed <= self.kv_cache.num_available - self.admission.watermark
        if not has_pages or all(one.num_steps == 1 for one in extended):
            return
        for one in extended:
            builder.copies[one.group.request.id] += one.allocate(self.kv_cache)

    def max_num_steps(self, builder: PlanBuilder) -> int:
        """Maximum number of decode steps of a multi-step plan; few if a stream waits for its
        end."""
        num_decodes = sum(map(len, builder.chunks.values()))
        has_stream = self.state.num_streamed > 0
        latency = self.latency_budget(num_decodes, has_stream)
        return latency.num_steps(self.config.num_steps)

    def latency_budget(self, num_decodes: int, has_stream: bool) -> LatencyBudget:
        times, is_shared = self.state.step_times, self.state.is_shared
        return LatencyBudget(self.config, times, num_decodes, has_stream, is_shared)

    def schedule_prefills(self, builder: PlanBuilder) -> None:
        """Continue the prefills of running groups with the rest of the budget, or with half of it
        if a key without running requests waits."""
        groups, num_reserved, reserved = list(self.state.running.values()), 0, 0.0
        if not self.state.waiting.has_one_key:
            groups.sort(key=lambda group: self.state.waiting.served[group.request.key])
            if self.keys_without_running():
                num_reserved, reserved = builder.budget // 2, 0.5
        for group in groups:
            name = group.request.id
            if name in builder.chunks or name not in self.state.running or has_begun(group):
                continue
            num_tokens = self.latency.num_tokens(group.first.num_computed, reserved)
            budget = min(builder.budget - num_reserved, num_tokens)
            if budget > 0:
                self.schedule_prefill(group, budget, builder)

    def schedule_prefill(self, group: SequenceGroup, budget: int, builder: PlanBuilder) -> None:
        """Compute at most `budget` tokens of a group's prompt."""
        context, num_before = group.first.num_computed, builder.budget
        self.schedule_chunks(group, next_chunks(group, budget), builder)
        if group.request.id in builder.chunks:
            self.latency.use(num_before - builder.budget, context)

    def divide_layers(self, builder: PlanBuilder) -> None:
        """Divide the prefills by layers among several steps if they do not fit into one."""
        if not self.latency.can_divide:
            return
        names = [name for name in builder.chunks if not self.state.running[name].is_decoding]
        chunks = [chunk for name in names for chunk in builder.chunks[name]]
        if not chunks or self.latency.has_time_for(chunks):
            return
        layered = {name: builder.chunks.pop(name) for name in names}
        self.state.layered = LayeredPrefill(layered, self.config.num_layers)
        self.schedule_layers(builder)

    def schedule_layers(self, builder: PlanBuilder) -> None:
        """Schedule the layers that fit into this step; after the last layer, the chunks are
        computed."""
        layered = self.state.layered
        assert layered is not None, "no chunk is divided by layers"
        builder.layered = layered.next_range(*self.latency.num_layered_tokens(layered.all_chunks))
        if builder.layered.is_last:
            builder.chunks |= layered.chunks

    def schedule_chunks(
        self, group: SequenceGroup, chunks: list[Chunk], builder: PlanBuilder
    ) -> None:
        """Add a group's chunks to the plan, with pages; it may be preempted instead."""
        copies: list[PageCopy] = []
        for sequence, chunk in zip(sequences_of(group, chunks), chunks, strict=True):
            tables = sequence.tables
            assert tables is not None, f"{group.request.id} runs without page tables"
            num_needed = tables.num_pages_needed(chunk.start, chunk.end)
            if num_needed:
                new_pages = self.allocate_or_preempt(num_needed, tables.owner, group, builder)
                if new_pages is None:
                    return
                copies += tables.add_pages(chunk.start, chunk.end, new_pages)
        builder.add(group, chunks, copies)

    def allocate_or_preempt(
        self, number: int, owner: str, group: SequenceGroup, builder: PlanBuilder
    ) -> list[int] | None:
        """Allocate pages, preempting other groups if needed; None if the group itself was
        preempted. With one key these are the groups admitted last."""
        while (pages := self.kv_cache.allocate(number, owner)) is None:
            assert len(self.state.running) > 1, (
                f"{owner} needs {number} pages, alone, but only {self.kv_cache.num_available} are "
                "available"
            )
            victim = self.state.last_of_largest_key() or self.state.last_admitted
            self.preempt(victim, builder)
            if victim is group:
                return None
        return pages

    def preempt(self, group: SequenceGroup, builder: PlanBuilder) -> None:
        """Free the group's pages and put it at the front of the queue; it computes nothing in this
        step."""
        assert group.source is None or group.source.is_written, "preempted while being encoded"
        builder.remove(group)
        self.state.requeue(group)
        builder.num_preempted += 1

    def force_preemption(self, builder: PlanBuilder) -> None:
        """For tests: preempt the last admitted group, which may be admitted again at once."""
        every = self.config.preempt_every
        if every and builder.step % every == 0 and self.state.running:
            self.preempt(self.state.last_admitted, builder)

    def admit(self, builder: PlanBuilder) -> None:
        """Admit waiting groups until a limit is reached."""
        waiting, num_preempted = self.state.waiting, builder.num_preempted
        if waiting.has_one_key:
            for queue in list(waiting.queues.values()):
                for _ in self.admissions(queue, builder):
                    pass
            return
        for key in self.keys_without_running():
            if next(self.admissions(waiting.queues[key], builder, is_first=True), None) is None:
                break
        if builder.num_preempted == num_preempted:
            self.admit_fairly(builder)

    def keys_without_running(self) -> list[str]:
        """Waiting keys without a running request, least served first."""
        running = {group.request.key for group in self.state.running.values()}
        return [key for key in self.state.waiting.waiting_keys() if key not in running]

    def admit_fairly(self, builder: PlanBuilder) -> None:
        """Admit one group after another, each of the key that was served least. If it has to wait
        for pages, so do the other keys; otherwise a large request might never get enough pages."""
        waiting = self.state.waiting
        turns = {key: self.admissions(queue, builder) for key, queue in waiting.queues.items()}
        planned, builder.is_full = planned_tokens(builder), False
        while turns and not builder.is_full:
            keys = [key for key in waiting.waiting_keys(planned) if key in turns]
            if not keys:
                return
            group = next(turns[keys[0]], None)
            if group is None:
                del turns[keys[0]]
            else:
                planned[keys[0]] += chunk_tokens(builder.chunks.get(group.request.id, []))

    def admissions(
        self, queue: WaitingQueue, builder: PlanBuilder, is_first: bool = False
    ) -> Iterator[SequenceGroup]:
        """Admit the groups of a key in their order, each when the iterator is advanced; it ends at
        a limit. `is_first`: nothing else of this key runs."""
        while queue and not self.is_full(builder, is_first):
            spans = queue.spans_of(self.state.running.values())
            all_admitted = True
            for group in queue.candidates():
                if queue.is_blocked(group):
                    return
                is_aged = queue.is_aged(group)
                span = None if is_aged else queue.next_span(group)
                if span is not None and span in spans:  # another group is computing these pages
                    result = AdmissionResult.DEFERRED
                else:
                    result = self.admit_group(group, builder, is_first)
                builder.is_full = result is AdmissionResult.NO_PAGES
                if builder.is_full or (result is AdmissionResult.DEFERRED and is_aged):
                    return
                all_admitted &= result is AdmissionResult.ADMITTED
                if result is AdmissionResult.ADMITTED:
                    spans.add(span)
                    yield group
            if not all_admitted:  # otherwise the queue may have new candidates
                return

    def is_full(self, builder: PlanBuilder, is_first: bool) -> bool:
        """Whether nothing can be admitted, whatever waits."""
        if not self.kv_cache.windows:
            return False  # an encoder uses neither pages nor decoder tokens
        if builder.budget < 1 or not self.latency.num_tokens(0):
            return True
        if is_first:
            return False
        has_pages = self.kv_cache.num_available > self.admission.watermark or not self.state.running
        return self.state.num_running >= self.config.max_running or not has_pages

    def admit_group(
        self, group: SequenceGroup, builder: PlanBuilder, is_first: bool
    ) -> AdmissionResult:
        if group.request.is_pooling:
            return self.admit_pooling(group, builder)
        num_running = self.state.num_running + group.request.num_sequences
        limit = self.config.token_budget if is_first else self.config.max_running
        if builder.budget < 1 or num_running > limit or not self.latency.num_tokens(0):
            return AdmissionResult.NO_PAGES
        result = self.admission.admit(group, builder, is_alone=not self.state.running)
        while is_first and result is AdmissionResult.NO_PAGES and self.preempt_for(group, builder):
            result = self.admission.admit(group, builder, is_alone=False)
        if result is AdmissionResult.ADMITTED:
            self.state.start(group)
            builder.num_admitted += 1
            if group.source is not None and not group.source.is_written:
                self.latency.use_encoder(group.source.num_tokens)
            num_tokens = max(1, self.latency.num_tokens(group.first.num_computed))
            self.schedule_prefill(group, min(builder.budget, num_tokens), builder)
        return result

    def preempt_for(self, group: SequenceGroup, builder: PlanBuilder) -> bool:
        """Preempt a group of the key with the most pages, in favor of a key without running
        requests. Returns False if this cannot help, or if that key has fewer pages than the group
        needs."""
        victim = self.state.last_of_largest_key()
        num_needed = self.admission.min_pages(group)
        if victim is None or self.state.num_pages_of_key(victim.request.key) <= num_needed:
            return False
        num_freed = self.state.num_preemptible_pages()
        if num_needed + self.admission.watermark > self.kv_cache.num_available + num_freed:
            return False
        self.preempt(victim, builder)
        return True

    def admit_pooling(self, group: SequenceGroup, builder: PlanBuilder) -> AdmissionResult:
        if not builder.can_encode(len(group.request.prompt)):
            return AdmissionResult.DEFERRED
        self.state.waiting.admitted(group)
        group.mark_admitted(self.state.now())
        builder.add_pooling(group)
        builder.num_admitted += 1
        return AdmissionResult.ADMITTED
