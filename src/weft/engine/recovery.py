"""Recovery of the engine after an exception at any point, and isolation of the request at fault.

    recover   a step whose results were recorded is completed, otherwise discarded; then all
              requests are treated as preempted, and reference counts, locks and free pages are
              recounted from the caches. A cache that is inconsistent is emptied
    isolate   a step that fails is repeated, then its requests are bisected, until those that fail
              alone are known: they end with an error, the others continue

Both rely on results that do not depend on the batch, on preemption or on cached prefixes: requests
have the same tokens, log-probabilities and texts as without the exception. What a sample depends on
besides its tokens (text held back, grammar state, drafts) is rebuilt from the scheduler's tokens;
random draws are a function of seed and position. Differs from vLLM, where a failed step ends the
engine process and all of its requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from weft.core.errors import EngineError
from weft.engine.engine_state import EngineState, StepRecord
from weft.engine.request import RequestOutput
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.sequence import Sequence as TokenSequence

log = logging.getLogger(__name__)


def recover(state: EngineState, dropped: Iterable[str] = ()) -> None:
    """Make the engine consistent after an exception. `dropped`: requests that an interrupted call
    was about to add or to remove. If this is interrupted as well, it can be repeated."""
    state.needs_recovery = True
    plan, groups = state.scheduler.in_flight, state.scheduler.state.groups
    if state.is_decided:
        state.suspects = []
        for record in state.records:
            if not record.is_applied:
                complete(state, record)
    elif plan is None:
        state.suspects = list(groups)
    else:
        state.suspects = plan.request_ids
        restore_samples(state, plan)
    for request_id in {*dropped, *(groups.keys() ^ state.requests.keys())}:
        groups.pop(request_id, None)
        state.forget(request_id)
    state.scheduler.recover()
    state.needs_recovery = False


def complete(state: EngineState, record: StepRecord) -> None:
    """Apply a step that was decided, however much of it was applied before the exception. Only
    tokens matter: all sequences will lose their pages."""
    groups, result = state.scheduler.state.groups, record.result
    num_before = {chunk.sequence_id: chunk.end - chunk.num_drafts for chunk in record.plan.chunks}
    for key, appended in result.appended.items():
        for sequence in groups[key.request_id].sequences if key.request_id in groups else ():
            if sequence.index == key.sequence_index:
                sequence.tokens[num_before[key] :] = appended.tokens
    for request_id, forked in result.forked.items():
        if request_id in groups:
            num_prompt, parents = len(groups[request_id].request.prompt), record.parents[request_id]
            groups[request_id].sequences = [
                TokenSequence(index, [*parents[child.parent], *child.tokens], num_prompt)
                for index, child in enumerate(forked.children)
            ]
    state.beams.update((key, one) for key, one in result.searches.items() if key in state.beams)
    for output in record.outputs:
        settle(state, output)
    record.is_applied = True


def settle(state: EngineState, output: RequestOutput) -> None:
    """Remove the sample or request that has ended according to an output."""
    group = state.scheduler.state.groups.get(output.request_id)
    if output.error is not None:
        state.forget(output.request_id)
    elif output.finish is not None:
        if group is not None:
            group.sequences = [one for one in group.sequences if one.index != output.index]
        state.finish(output)


def restore_samples(state: EngineState, plan: Plan) -> None:
    """Rebuild the samples of a plan, to which tokens may have been appended that the scheduler does
    not know."""
    for request_id in dict.fromkeys(chunk.request.id for chunk in plan.chunks):
        group = state.scheduler.state.groups.get(request_id)
        samples = state.samples.get(request_id, {})
        if group is None:
            continue
        tokens = {one.index: one.tokens[one.num_prompt :] for one in group.sequences}
        try:
            for index, sample in list(samples.items()):
                factory, output = state.sample_states, tokens.get(index, [])
                samples[index] = factory.restore(sample.request, index, output)
        except Exception as error:
            if request_id not in state.unrestored:
                state.unrestored.add(request_id)
                raise
            state.fail(request_id, failure_message(error))
        state.unrestored.discard(request_id)


def failure_message(error: BaseException) -> str:
    """One sentence for the output of a request that failed alone."""
    text = " ".join(str(error).split())[:300] or "no message"
    return (
        f"the request failed in an engine step with {type(error).__name__}: {text}. The other "
        "requests continue. Submit it again, and report this error if it repeats."
    )


class FaultIsolation:
    """Finds the requests at fault after a step has failed."""

    def __init__(self, state: EngineState, run_step: Callable[[], Plan]) -> None:
        """`run_step` runs one step of the requests that may run now; it recovers and raises if it
        fails."""
        self.state, self.run_step = state, run_step

    def isolate(self, ids: Sequence[str], error: Exception) -> None:
        """Fail the requests among `ids` that fail alone. Raises an EngineError if each of several
        requests fails, so that none is the cause."""
        log.warning("step=failed action=repeat requests=%d error=%r", len(ids), error)
        try:
            failed = self.failing(ids)
        finally:
            self.state.scheduler.recover()
        for request_id, failure in failed.items():
            log.error("request=%s state=failed", request_id, exc_info=failure)
            self.state.fail(request_id, failure_message(failure))
        if len(failed) == len(ids) > 1:
            raise EngineError(
                f"an engine step failed with {type(error).__name__}: {error}. Each of its "
                f"{len(ids)} requests failed alone as well and was removed. The engine continues: "
                "correct the cause and submit them again."
            ) from error

    def failing(self, ids: Sequence[str]) -> dict[str, Exception]:
        """The requests among `ids` that fail alone, with their errors."""
        ids = [request_id for request_id in ids if request_id in self.state.requests]
        error = self.error_of(ids) if ids else None
        if error is None:
            return {}
        if len(ids) == 1:
            return {ids[0]: error}
        middle = len(ids) // 2
        return {**self.failing(ids[:middle]), **self.failing(ids[middle:])}

    def error_of(self, ids: Sequence[str]) -> Exception | None:
        """Run only these requests until each one in the first step has new tokens or has ended,
        which may take several steps; returns the exception, or None."""
        if self.state.needs_recovery:  # the recovery from the last failure failed as well
            recover(self.state)
        self.state.scheduler.recover(only=frozenset(ids))
        before = {request_id: self.num_tokens(request_id) for request_id in ids}
        try:
            computed = self.run_step().request_ids
            while any(self.num_tokens(one) == before[one] for one in computed):
                self.run_step()
        except Exception as error:
            return None if self.state.is_decided else error
        return None

    def num_tokens(self, request_id: str) -> int:
        """Number of tokens of an active request, or -1."""
        group = self.state.scheduler.state.groups.get(request_id)
        return -1 if group is None else sum(len(one.tokens) for one in group.sequences)
