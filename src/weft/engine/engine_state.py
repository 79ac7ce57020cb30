"""Everything the engine keeps between two steps: requests, their samples and searches, and results
that were not returned yet.

A step is decided at one point, by appending a `StepRecord`: if an exception interrupts it before,
nothing has happened; after it, recovery.py completes what the record says. Outputs stay here until
`Engine.step` returns them, so an exception loses none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.engine.attention_rows import FinishedRequests
from weft.engine.beam_search import BeamSearch
from weft.engine.request import RequestOutput, SampleState, SampleStateFactory
from weft.engine.sampling_step import StepResult
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request


@dataclass(frozen=True)
class ScoredText:
    """A text to score."""

    ids: tuple[int, ...]
    num_top: int = 0
    """Number of most likely tokens to return for each position."""


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """A request that was checked, with the state that it starts with."""

    request: Request
    samples: dict[int, SampleState] | None = None
    search: BeamSearch | None = None
    text: ScoredText | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_samples(self) -> int:
        """Outputs with `finish` that will follow, unless the request fails."""
        return len(self.samples or ()) or 1


@dataclass(eq=False)
class StepRecord:
    """The results of one step; outputs without a plan report failed requests."""

    outputs: list[RequestOutput]
    plan: Plan = field(default_factory=lambda: Plan(0))
    result: StepResult = field(default_factory=StepResult)
    parents: dict[str, list[list[int]]] = field(default_factory=dict)
    """The tokens of the sequences that are forked, as they were before: request id -> sequences.
    These lists are never changed, only replaced."""
    is_applied: bool = False


class EngineState:
    """The requests of one engine."""

    def __init__(self, scheduler: Scheduler, sample_states: SampleStateFactory) -> None:
        self.scheduler, self.sample_states = scheduler, sample_states
        self.requests: dict[str, Request] = {}
        """Active requests. One that only the scheduler knows was interrupted in `submit`."""
        self.samples: dict[str, dict[int, SampleState]] = {}
        """Samples of the active requests, by request id and index."""
        self.beams: dict[str, BeamSearch] = {}
        self.texts_to_score: dict[str, ScoredText] = {}
        self.finished = FinishedRequests()
        self.records: list[StepRecord] = []
        """Steps whose outputs were not returned yet."""
        self.unreturned: list[list[RequestOutput]] = []
        """Outputs that `Engine.step` is about to return; at most one list."""
        self.needs_recovery = False
        """Whether the recovery from an exception is incomplete."""
        self.num_decided = 0
        """Number of records when the last step began."""
        self.suspects: list[str] = []
        """Requests of the last failed step, unless its results were recorded."""
        self.unrestored: set[str] = set()
        """Requests whose samples could not be rebuilt in the last recovery."""

    @property
    def is_decided(self) -> bool:
        """Whether the results of the last step were recorded."""
        return len(self.records) > self.num_decided

    @property
    def has_outputs(self) -> bool:
        """Whether there are outputs of an interrupted step."""
        return bool(self.records) or any(self.unreturned)

    def collect_outputs(self) -> None:
        """Move the outputs of all steps to `unreturned`. Repeating it changes nothing."""
        if self.records or not self.unreturned:
            self.unreturned = [[output for one in self.records for output in one.outputs]]
            self.records.clear()

    def will_return(self, request_id: str) -> bool:
        """Whether an output of a request has not been returned yet."""
        outputs = [*self.unreturned, *(record.outputs for record in self.records)]
        return any(output.request_id == request_id for part in outputs for output in part)

    def apply(self, record: StepRecord) -> None:
        """Commit the results of a step to the scheduler, and forget finished requests."""
        result = record.result
        self.beams.update(result.searches)
        self.scheduler.commit(record.plan, result.appended, result.forked)
        for key in result.finished:
            self.scheduler.finish(*key)
        for output in record.outputs:
            if output.error is not None:
                self.remove(output.request_id)
            elif output.finish is not None:
                self.finish(output)
        record.is_applied = True

    def fail(self, request_id: str, error: str) -> None:
        """Remove a request that failed; its output has the error."""
        record = StepRecord([RequestOutput(request_id, error=error)])
        self.records.append(record)
        self.remove(request_id)
        record.is_applied = True

    def remove(self, request_id: str) -> None:
        """Remove a request and free its pages."""
        self.scheduler.cancel(request_id)
        self.forget(request_id)

    def finish(self, output: RequestOutput) -> None:
        """One sample has ended; with the last one its request is forgotten."""
        samples = self.samples.get(output.request_id, {})
        state, request = samples.get(output.index), self.requests.get(output.request_id)
        if request is not None and state is not None:
            self.finished.add(request, output.index, state.output)
        if request is not None:
            for index, hypothesis in enumerate(output.hypotheses):
                self.finished.add(request, index, hypothesis.ids)
        samples.pop(output.index, None)
        if not samples:
            self.forget(output.request_id)

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that is not active any more. Its tokens move to
        `finished`."""
        request = self.requests.get(request_id)
        for index, state in self.samples.get(request_id, {}).items():
            if request is not None:
                self.finished.add(request, index, state.output)
        self.samples.pop(request_id, None)
        self.beams.pop(request_id, None)
        self.texts_to_score.pop(request_id, None)
        self.requests.pop(request_id, None)
