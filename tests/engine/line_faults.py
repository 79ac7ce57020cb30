"""Exceptions at every line: which lines a run reaches, a run with an exception at one of them, and
the same results afterwards.

    lines = reached_lines(scenario)         lines of src/weft, in the order of their first hit
    run_with_fault(scenario, lines[0], KeyboardInterrupt)

The exception is raised by a trace function (sys.settrace) before the line runs for the first time.
Then the state is audited, the run goes on to its end, and tokens, log-probabilities, texts,
hypotheses and vectors are compared with those of the undisturbed run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import weft
from tests.engine.test_attention_rows import MODELS
from tests.engine.tiny import tiny
from weft.cache.events import EventLog
from weft.checkpoint.weft_folder import Checkpoint
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig, SchedulerConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.scheduling.audit import audit
from weft.models.config import ModelConfig
from weft.sampling.params import SamplingParams

SOURCES = str(Path(weft.__file__).parent)

Line = tuple[str, int]
Fault = type[BaseException]
FAULTS: tuple[Fault, ...] = (KeyboardInterrupt, RuntimeError, MemoryError)

PROMPT = (5, 9, 30, 7, 8, 6, 40, 41, 9, 12, 13)
DRAWN = SamplingParams(temperature=0.9, seed=3, top_p=0.9, logprobs=2)
GREEDY = SamplingParams(temperature=0.0, logprobs=1)


def first_line(period: int) -> int:
    """Where a sample of every `period`th line begins: another line each day, in CI always the
    same, so that a commit that passes once passes again."""
    return 0 if os.environ.get("CI") else date.today().toordinal() % period


class LayeredConfig(EngineConfig):
    """While a stream decodes, each step computes some tokens of one layer of a prompt."""

    def scheduler(self, model: ModelConfig, can_run_multi_step: bool = True) -> SchedulerConfig:
        settings = super().scheduler(model, can_run_multi_step)
        return settings.model_copy(update={"prefill_share": 0.0, "min_prefill_seconds": 0.0})


@dataclass(frozen=True)
class FaultScenario:
    """An engine, and requests of which the second half arrives after two steps."""

    model: str
    requests: tuple[GenerationRequest, ...]
    config: dict[str, Any] = field(default_factory=dict)
    texts: tuple[tuple[int, ...], ...] = ()
    """Texts to embed."""
    scored: tuple[tuple[int, ...], ...] = ()
    """Texts to score."""
    has_listener: bool = False
    make_config: type[EngineConfig] = EngineConfig


def samples(*lengths: int, **changes: Any) -> tuple[GenerationRequest, ...]:
    """Requests with common prefixes of these lengths."""
    made = []
    for index, length in enumerate(lengths):
        sampling = (GREEDY, DRAWN)[index % 2]
        prompt = (*PROMPT[:length], 20 + index)
        made.append(GenerationRequest(prompt, 5, sampling=sampling, **changes))
    return tuple(made)


def searches(
    width: int, source: tuple[int, ...] | None, *limits: int
) -> tuple[GenerationRequest, ...]:
    ends, beam = frozenset([2]), BeamConfig(width, num_best=min(2, width))
    return tuple(
        GenerationRequest(PROMPT[: 2 + index], limit, source, ends=ends, beam=beam)
        for index, limit in enumerate(limits)
    )


GRAMMAR = GenerationRequest((5, 6), 6, sampling=DRAWN, grammar=make_grammar("regex", "[a-c]{4,}x"))
STOPPED = GenerationRequest((5, 9), 6, sampling=DRAWN, stops=("@@", "e"))
REPEATED = GenerationRequest((9, 9, 9, 9), 12, sampling=GREEDY)

SCENARIOS: dict[str, FaultScenario] = {
    "prefill": FaultScenario(
        "gqa", samples(11, 8, 11), {"token_budget": 7}, texts=((5, 6, 7),), scored=((5, 6, 7, 8),)
    ),
    "decode": FaultScenario("some windows", (*samples(3, 5), GRAMMAR, STOPPED), has_listener=True),
    "beam": FaultScenario("gqa", (*searches(3, None, 6, 4), *samples(4)), {"num_steps": 1}),
    "multi-step": FaultScenario("gqa", searches(3, None, 9, 7), {"num_steps": 4}),
    "preemption": FaultScenario("some windows", samples(11, 9, 11, 4), {"preempt_every": 3}),
    "drafts": FaultScenario(
        "mla", (REPEATED, *samples(6, 6)), {"speculate": True, "prefix_cache": "hash"}
    ),
    "layers": FaultScenario(
        "some windows",
        (replace(STOPPED, is_streamed=True, max_tokens=20), *samples(11, 8)),
        make_config=LayeredConfig,
        has_listener=True,
    ),
    "n > 1": FaultScenario("gqa", samples(5, 8, n=3), has_listener=True),
    "encoder-decoder": FaultScenario(
        "t5",
        (
            *searches(1, (7, 8, 9), 6),
            GenerationRequest((1, 5), 5, (7, 8, 9, 10, 11), DRAWN),
            *searches(2, (7, 8, 9), 5),
        ),
        {"encoder_budget": 6},
        has_listener=True,
    ),
}


@cache
def checkpoint_of(model: str) -> Checkpoint:
    return tiny(**MODELS[model])


class FaultRun:
    """One run of a scenario."""

    def __init__(self, scenario: FaultScenario, checkpoint: Checkpoint | None = None) -> None:
        """`checkpoint`: the model of the scenario; all runs share one unless it is given."""
        checkpoint, self.scenario = checkpoint or checkpoint_of(scenario.model), scenario
        settings = {"page_size": 4, "cache_gib": 1e-9, **scenario.config}
        config = scenario.make_config(**settings)
        clock = count()  # the same lines are reached in every run, however long its steps take
        self.engine = Engine(
            checkpoint.model, checkpoint.tokenizer, config, now=lambda: 1e-6 * next(clock)
        )
        if scenario.has_listener:
            self.engine.listen(EventLog())
        self.names: dict[str, str] = {}
        self.results: dict[tuple[str, int], dict[str, Any]] = {}
        self.num_steps = 0
        self.has_fault = False
        """Whether an injected exception was raised."""

    def submit(self, number: int) -> None:
        """The requests that arrive in this step."""
        requests, half = self.scenario.requests, (len(self.scenario.requests) + 1) // 2
        new = {0: range(half), 2: range(half, len(requests))}.get(number, range(0))
        for index in new:
            self.names[self.engine.submit(requests[index])] = f"request {index}"
        if number == 0:
            for text in self.scenario.texts:
                self.names[self.engine.submit_embedding(text)] = f"text {text}"
            for text in self.scenario.scored:
                self.names[self.engine.submit_score(text)] = f"score {text}"

    def run(self, step: Callable[[], list[RequestOutput]]) -> dict[tuple[str, int], dict[str, Any]]:
        """Run to the end with steps of this function."""
        while self.num_steps <= 2 or not self.engine.is_idle:
            self.submit(self.num_steps)
            self.num_steps += 1
            for output in step():
                self.take(output)
            assert self.num_steps < 200, "the engine makes no progress"
        pool = self.engine.kv_cache.pool
        assert pool.num_free + pool.num_evictable == pool.num_usable
        check_engine(self.engine)
        return self.results

    def run_undisturbed(self) -> dict[tuple[str, int], dict[str, Any]]:
        return self.run(self.engine.step)

    def take(self, output: RequestOutput) -> None:
        assert output.error is None, output.error
        nothing: dict[str, Any] = {"tokens": [], "text": "", "logprobs": [], "hypotheses": []}
        result = self.results.setdefault((self.names[output.request_id], output.index), nothing)
        assert "finish" not in result, "an output after the last"
        for name in nothing:
            result[name] = result[name] + getattr(output, name)
        if output.vectors_TD is not None:
            result["vectors"] = output.vectors_TD.tolist()
        if output.finish is not None:
            result["finish"] = output.finish


def check_engine(engine: Engine) -> None:
    """What holds between two steps."""
    scheduler, state = engine.scheduler, engine.state
    audit(scheduler.state)
    assert scheduler.in_flight is None and not scheduler.finished_in_flight
    assert not state.needs_recovery
    groups = scheduler.state.groups
    assert engine.requests.keys() == groups.keys()
    for name, group in groups.items():
        assert (name in engine.samples) + (name in engine.beams) + group.request.is_pooling == 1
        assert not group.spares
        tokens = {one.index: one.tokens[one.num_prompt :] for one in group.sequences}
        if name in engine.beams:
            histories = dict(enumerate(engine.beams[name].histories))
            assert tokens == histories, f"{name}: the search has other tokens"
        for index, sample in engine.samples.get(name, {}).items():
            assert sample.output == tokens.get(index, []), f"{name}: the sample has other tokens"
    assert {*engine.samples, *engine.beams, *state.texts_to_score} <= groups.keys()


class LineRecorder:
    """Collects the lines of src/weft that are reached while it is active."""

    def __init__(self) -> None:
        self.lines: dict[Line, None] = {}

    def __enter__(self) -> None:
        sys.settrace(self.enter_function)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def enter_function(self, frame: FrameType, event: str, _: object) -> Any:
        return self.note if frame.f_code.co_filename.startswith(SOURCES) else None

    def note(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.lines.setdefault((frame.f_code.co_filename, frame.f_lineno))
        return self.note


@cache
def lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line is not None)


class LineFault:
    """Raises an exception when a line is reached for the first time while it is active."""

    def __init__(self, line: Line, fault: Fault) -> None:
        (self.path, self.number), self.fault = line, fault
        self.has_raised = False

    def __enter__(self) -> None:
        if not self.has_raised:
            sys.settrace(self.enter_function)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        sys.settrace(None)

    def enter_function(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_filename == self.path and self.number in lines_of(code):
            return self.check_line
        return None

    def check_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_lineno == self.number and not self.has_raised:
            self.has_raised = True
            sys.settrace(None)
            raise self.fault(f"at {self.path}:{self.number}")
        return self.check_line


def reached_lines(
    scenario: FaultScenario, checkpoint: Checkpoint | None = None
) -> tuple[list[Line], dict[tuple[str, int], Any]]:
    """The lines that the steps of a run reach, and its results."""
    run, recorder = FaultRun(scenario, checkpoint), LineRecorder()

    def step() -> list[RequestOutput]:
        with recorder:
            return run.engine.step()

    results = run.run(step)
    return list(recorder.lines), results


def run_with_fault(
    scenario: FaultScenario, line: Line, fault: Fault, checkpoint: Checkpoint | None = None
) -> tuple[dict[tuple[str, int], Any], FaultRun]:
    """Results of a run in which one line raises. The engine is audited after each step."""
    run, injected = FaultRun(scenario, checkpoint), LineFault(line, fault)
    handler = signal.getsignal(signal.SIGINT)

    def step() -> list[RequestOutput]:
        try:
            with injected:
                return run.engine.step()
        except fault as error:
            assert str(error).startswith("at "), error
            return []
        finally:
            check_engine(run.engine)

    results = run.run(step)
    run.has_fault = injected.has_raised
    assert injected.has_raised or checkpoint is not None, f"{line} was not reached"
    assert signal.getsignal(signal.SIGINT) == handler, "SIGINT stays deferred"
    return results, run
