"""State -> the next plan: decodes first, then prompts in chunks, then whoever can be admitted.

All under one budget of tokens, so that long prompts never hold up those who decode (Sarathi-Serve,
Agrawal 2024; vLLM V1). When pages run out the job admitted last is preempted, and nobody is
admitted in that step. The oldest job is never preempted, so something always ends.
"""

from __future__ import annotations

from weft.cache.page_tables import PageCopy
from weft.engine.schedule.admission import Admission, Verdict
from weft.engine.schedule.drafts import DraftBudget, Drafts
from weft.engine.schedule.longer import all_can_go_on, longest
from weft.engine.schedule.plan import Chunk, Key, Plan
from weft.engine.schedule.request import Job
from weft.engine.schedule.state import State
from weft.engine.schedule.step import Step, Wish, chunk_of, wishes


class Planner:
    """Makes plans. Between them it keeps nothing but the state it was given."""

    def __init__(self, state: State) -> None:
        self.state, self.config, self.kv_cache = state, state.config, state.kv_cache
        self.admission = Admission(state.config, state.kv_cache, state.statistics)

    def plan(self, number: int, drafts: Drafts | None) -> Plan:
        step = Step(number, self.config.token_budget, self.config.encoder_budget)
        self.force_preemption(step)
        num_forced = step.num_preempted
        self.run_decodes(step, drafts)
        self.run_prompts(step)
        if step.num_preempted == num_forced and self.state.waiting:
            self.admit(step)
        if self.config.passes > 1:
            self.lengthen(step)
        self.state.statistics.preempted += step.num_preempted
        return step.plan()

    def run_decodes(self, step: Step, drafts: Drafts | None) -> None:
        """Every job that decodes runs a token of each sequence, and drafts if there is room."""
        jobs = [job for job in self.state.running.values() if job.is_decoding]
        extra = None
        if drafts is not None:
            left = step.budget - sum(len(job.sequences) for job in jobs)
            extra = DraftBudget(drafts, left, self.state.num_running, self.kv_cache)
        for job in jobs:
            if job.request.id not in self.state.running:
                continue
            if extra is None and job.request.n == 1 and len(job.sequences) <= step.budget:
                self.decode(job, step)
                continue
            found = wishes(job, step.budget)
            if extra is not None:
                found = [extra.longer(job, wish) for wish in found]
            self.run(job, found, step)

    def run_prompts(self, step: Step) -> None:
        """Jobs that do not decode yet go on with what budget is left."""
        for job in list(self.state.running.values()):
            is_planned = job.request.id in step.chunks
            if step.budget > 0 and not is_planned and job.request.id in self.state.running:
                self.run(job, wishes(job, step.budget), step)

    def run(self, job: Job, found: list[Wish], step: Step) -> None:
        """Put a job's chunks into the plan, with pages; it may be preempted instead."""
        copies: list[PageCopy] = []
        for wish in found:
            tables = wish.sequence.tables
            assert tables is not None, f"{job.request.id} runs without page tables"
            needed = tables.num_pages_needed(wish.start, wish.num_slots)
            if needed:
                fresh = self.take(needed, tables.owner, job, step)
                if fresh is None:
                    return
                copies += tables.add_pages(wish.start, wish.num_slots, fresh)
        step.put(job, [chunk_of(job, wish) for wish in found], copies)

    def decode(self, job: Job, step: Step) -> None:
        """What `run` does, for a job whose sequences run a token each: in half the time, as it is
        most of what a busy engine plans."""
        request, copies, chunks = job.request, list[PageCopy](), list[Chunk]()
        for sequence in job.sequences:
            tables, start = sequence.tables, sequence.num_computed
            assert tables is not None, f"{request.id} runs without page tables"
            needed = tables.num_pages_needed(start, start + 1)
            if needed:
                fresh = self.take(needed, tables.owner, job, step)
                if fresh is None:
                    return
                copies += tables.add_pages(start, start + 1, fresh)
            key, last = Key(request.id, sequence.index), sequence.tokens[-1:]
            chunks.append(Chunk(request, key, start, last, 0, 1, tables.by_group, job.source))
        step.put(job, chunks, copies)

    def lengthen(self, step: Step) -> None:
        """Several passes, where everybody runs a token and nobody looks at the next one. They get
        pages for all of them, as far as admission would give them, too."""
        jobs = [(self.state.running[name], chunks) for name, chunks in step.chunks.items()]
        if step.embeddings or not all_can_go_on(jobs):
            return
        longer = [longest(job, chunks, self.config.passes) for job, chunks in jobs]
        needed = sum(one.num_pages for one in longer)
        has_pages = needed <= self.kv_cache.num_available - self.admission.watermark
        if not has_pages or all(one.passes == 1 for one in longer):
            return
        for one in longer:
            step.copies[one.job.request.id] += one.take_pages(self.kv_cache)

    def take(self, number: int, owner: str, job: Job, step: Step) -> list[int] | None:
        """Pages, if need be those of jobs admitted later; None when the job itself had to go."""
        while (pages := self.kv_cache.allocate(number, owner)) is None:
            assert len(self.state.running) > 1, (
                f"{owner} needs {number} pages, alone, but {self.kv_cache.num_available} can be had"
            )
            victim = self.state.latest
            self.preempt(victim, step)
            if victim is job:
                return None
        return pages

    def preempt(self, job: Job, step: Step) -> None:
        """The job is the next to be admitted again; what it would have run in this step is not."""
        assert job.source is None or job.source.is_written, "preempted while it is being encoded"
        step.take_back(job)
        self.state.put_back(job)
        step.num_preempted += 1

    def force_preemption(self, step: Step) -> None:
        """For tests: the latest job goes, and may come back at once."""
        every = self.config.preempt_every
        if every and step.number % every == 0 and self.state.running:
            self.preempt(self.state.latest, step)

    def admit(self, step: Step) -> None:
        """Let waiting jobs in, in turn, until something is used up."""
        while self.state.waiting and not self.is_full(step) and self.admit_some(step):
            pass

    def admit_some(self, step: Step) -> bool:
        """Those whose turn it may be; whether all of them were admitted, so that it may be others'
        turn, too."""
        waiting = self.state.waiting
        runs = waiting.runs_of(self.state.running.values())
        are_all_in = True
        for job in waiting.in_turn():
            if waiting.is_barred(job):
                return False
            is_aged = waiting.is_aged(job)
            run = None if is_aged else waiting.next_run(job)
            is_computed_now = run is not None and run in runs
            verdict = Verdict.LATER if is_computed_now else self.admit_one(job, step)
            if verdict is Verdict.FULL or (verdict is Verdict.LATER and is_aged):
                return False
            are_all_in &= verdict is Verdict.ADMITTED
            if verdict is Verdict.ADMITTED:
                runs.add(run)
        return are_all_in

    def is_full(self, step: Step) -> bool:
        """Nobody can be admitted, and nobody needs to look at the queue."""
        if not self.kv_cache.windows:
            return False  # an encoder needs neither
        has_pages = self.kv_cache.num_available > self.admission.watermark or not self.state.running
        is_crowded = self.state.num_running >= self.config.max_running
        return step.budget < 1 or is_crowded or not has_pages

    def admit_one(self, job: Job, step: Step) -> Verdict:
        if job.request.is_embedding:
            return self.admit_embedding(job, step)
        wanted = self.state.num_running + job.request.num_sequences
        if step.budget < 1 or wanted > self.config.max_running:
            return Verdict.FULL
        verdict = self.admission.admit(job, step, is_alone=not self.state.running)
        if verdict is Verdict.ADMITTED:
            self.state.start(job)
            step.num_admitted += 1
            self.run(job, wishes(job, step.budget), step)
        return verdict

    def admit_embedding(self, job: Job, step: Step) -> Verdict:
        if not step.can_encode(len(job.request.prompt)):
            return Verdict.LATER
        self.state.waiting.admitted(job)
        job.was_admitted = True
        step.embed(job)
        step.num_admitted += 1
        return Verdict.ADMITTED
