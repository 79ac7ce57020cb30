"""One request that makes every step fail, at each stage of a step: it ends with an error, and the
other 15 have the same bits as alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.line_faults import check_engine, checkpoint_of
from weft.cache.events import CacheEvent, PageEvent
from weft.core.errors import DataError, EngineError
from weft.engine import sampling_step
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.detokenizer import Detokenizer
from weft.engine.engine import Engine
from weft.engine.grammar import Matcher, make_grammar
from weft.engine.request import GREEDY, GenerationRequest, RequestOutput
from weft.engine.sampling_step import StepChooser
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.sequence import SequenceGroup
from weft.sampling.params import SamplingParams

POISON = 33
"""A token that only the bad request has."""
BAD = 11
"""Its number among the requests."""


def engine_of(**config: Any) -> Engine:
    checkpoint = checkpoint_of("gqa")
    settings = {"page_size": 4, "cache_gib": 1e-3, **config}
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**settings))


def requests() -> list[GenerationRequest]:
    """All kinds; the bad one has a grammar, a stop string, log-probabilities and the poison."""
    made = []
    for i in range(16):
        sampling = SamplingParams(
            temperature=(0.0, 0.8)[i % 2], seed=i, logprobs=1, banned=(POISON,)
        )
        prompt, more = (5, 9, 30, 7, *range(8, 8 + i % 5)), dict[str, Any]()
        if i == BAD:
            prompt, more = (5, 9, 30, POISON, 7), {"stops": ("@poison@",)}
        if i in (BAD, 3):
            more["grammar"] = make_grammar("regex", "[a-c]{3,}x")
        elif i == 5:
            more["n"] = 3
        elif i == 7:
            more = {"beam": BeamConfig(3, banned=(POISON,)), "ends": frozenset([2])}
            sampling = GREEDY
        made.append(GenerationRequest(prompt, 3 + i % 4, sampling=sampling, **more))
    return made


Results = dict[int, dict[int, list[Any]]]


def run(engine: Engine, numbers: list[int]) -> tuple[Results, dict[int, list[RequestOutput]]]:
    """Outputs of these requests run together: results by number and sample, and errors."""
    asked = requests()
    names = {engine.submit(asked[number]): number for number in numbers}
    results: Results = {number: {} for number in numbers}
    errors: dict[int, list[RequestOutput]] = {}
    while not engine.is_idle:
        for output in engine.step():
            number = names[output.request_id]
            if output.error is not None:
                errors.setdefault(number, []).append(output)
                continue
            line = results[number].setdefault(output.index, [])
            line.append((output.tokens, output.text, output.logprobs, output.hypotheses))
        check_engine(engine)
    pool = engine.kv_cache.pool
    assert pool.num_free + pool.num_evictable == pool.num_usable
    return results, errors


def joined(results: Results) -> dict[tuple[int, int], list[Any]]:
    """All tokens, texts, log-probabilities and hypotheses of each sample."""
    return {
        (number, index): [sum((part[i] for part in line), type(line[0][i])()) for i in (0, 2, 3)]
        + ["".join(part[1] for part in line)]
        for number, samples in results.items()
        for index, line in samples.items()
    }


def fail(reason: str) -> None:
    raise RuntimeError(f"poisoned {reason}")


def poison_admission(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    admission = engine.scheduler.planner.admission
    real = admission.match_prefix

    def match_prefix(group: SequenceGroup) -> None:
        real(group)
        if POISON in group.request.prompt:
            fail("admission")

    patch.setattr(admission, "match_prefix", match_prefix)


def poison_grammar(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    real = sampling_step.sample_rows

    def sample_rows(chunk: Any, *args: Any) -> Any:
        matcher = engine.samples[chunk.request.id][chunk.index].matcher
        if POISON in chunk.request.prompt:
            patch.setattr(matcher, "allowed_along", lambda drafts: fail("grammar"))
        return real(chunk, *args)

    assert Matcher.allowed_along
    patch.setattr(sampling_step, "sample_rows", sample_rows)


def poison_forward(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """A hook of the embedding that cannot bear the token: then the modules run, with equal bits."""

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if any(isinstance(one, torch.Tensor) and (one == POISON).any() for one in args):
            fail("forward")

    embedding = next(one for one in engine.model.modules() if isinstance(one, torch.nn.Embedding))
    handle = embedding.register_forward_pre_hook(hook)
    patch.setattr(engine, "hook_handle", handle, raising=False)


def poison_logits(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    real = StepChooser.choose

    def choose(self: StepChooser, logits: Any) -> Any:
        has_poison = any(POISON in chunk.request.prompt for chunk in self.plan.chunks)
        return fail("logits") if has_poison else real(self, logits)

    patch.setattr(StepChooser, "choose", choose)


def poison_sampling(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    real = sampling_step.sample

    def sample(logits_NV: Any, rows: Any) -> Any:
        has_poison = any(POISON in row.prompt and len(row.output) == 2 for row in rows)
        return fail("sampling") if has_poison else real(logits_NV, rows)

    patch.setattr(sampling_step, "sample", sample)


def poison_detokenization(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    real = Detokenizer.append

    def append(self: Detokenizer, token: int) -> str:
        text = real(self, token)
        if "@poison@" in self.stops:
            fail("detokenization")
        return text

    patch.setattr(Detokenizer, "append", append)


POISONS: dict[str, Callable[[Engine, pytest.MonkeyPatch], None]] = {
    "admission": poison_admission,
    "grammar": poison_grammar,
    "forward": poison_forward,
    "logits": poison_logits,
    "sampling": poison_sampling,
    "detokenization": poison_detokenization,
}


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, int], list[Any]]:
    engine = engine_of(prefix_cache="none")
    results: Results = {}
    for number in range(16):
        results |= run(engine, [number])[0]
    return joined(results)


@pytest.mark.parametrize("config", [{}, {"prefix_cache": "none", "token_budget": 20}], ids=str)
@pytest.mark.parametrize("stage", POISONS)
def test_one_bad_request_of_16_fails_alone(stage, config, alone, monkeypatch):
    engine = engine_of(**config)
    POISONS[stage](engine, monkeypatch)
    try:
        results, errors = run(engine, list(range(16)))
    finally:
        if hasattr(engine, "hook_handle"):
            engine.hook_handle.remove()
    assert list(errors) == [BAD] and len(errors[BAD]) == 1
    message = errors[BAD][0].error
    assert message is not None
    assert message.startswith("the request failed in an engine step with RuntimeError: poisoned")
    assert "Submit it again" in message
    others = {key: value for key, value in joined(results).items() if key[0] != BAD}
    assert others == {key: value for key, value in alone.items() if key[0] != BAD}


def test_a_listener_that_raises_is_removed_and_disturbs_nobody(alone, caplog):
    engine, heard = engine_of(), list[CacheEvent]()

    def listener(event: CacheEvent) -> None:
        heard.append(event)
        if isinstance(event, PageEvent) and event.owner.startswith(f"r{BAD}/"):
            fail("callback")

    engine.listen(listener)
    results, errors = run(engine, list(range(16)))
    assert not errors and joined(results) == alone
    assert heard[-1].owner.startswith(f"r{BAD}/"), "no event after the one that raised"
    assert engine.kv_cache.pool.listener is None
    assert caplog.text.count("poisoned callback") == 1 and "listener=removed" in caplog.text


@pytest.mark.parametrize("times", range(1, 40, 3))
def test_a_listener_that_raises_at_any_event_corrupts_nothing(times):
    engine, left = engine_of(), iter(range(times))

    def listener(event: CacheEvent) -> None:
        if next(left, None) is None:
            fail("event")

    engine.listen(listener)
    results, errors = run(engine, [0, 5, 7])
    assert len(results) == 3 and not errors


def test_a_step_that_fails_once_is_repeated_and_nobody_notices(alone, monkeypatch):
    engine, calls = engine_of(), []
    real = engine.runner.run

    def run_plan(plan: Plan, chooser: StepChooser) -> Any:
        calls.append(plan)
        result = real(plan, chooser)
        return fail("once") if len(calls) in (2, 5, 9) else result

    monkeypatch.setattr(engine.runner, "run", run_plan)
    results, errors = run(engine, list(range(16)))
    assert not errors and joined(results) == alone


def test_a_failure_that_follows_no_request_is_one_engine_error(alone, monkeypatch):
    engine = engine_of()
    names = [engine.submit(requests()[number]) for number in (0, 1, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", lambda *_: fail("machine"))
        with pytest.raises(EngineError, match="RuntimeError: poisoned machine.*3 requests failed"):
            engine.step()
    check_engine(engine)
    outputs = engine.step()
    assert sorted(output.request_id for output in outputs) == sorted(names)
    assert all(output.error for output in outputs) and engine.is_idle
    results, errors = run(engine, [0, 5, 7])
    assert not errors
    assert joined(results) == {key: one for key, one in alone.items() if key[0] in (0, 5, 7)}


def test_a_request_that_fails_alone_in_its_engine_has_an_error(monkeypatch):
    engine = engine_of()
    client = EngineClient(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", lambda *_: fail("machine"))
        with pytest.raises(DataError, match="failed in an engine step with RuntimeError: poisoned"):
            list(client.generate(requests()[0]))
    assert engine.is_idle and not client.output_queues
    assert list(client.generate(requests()[0]))


def test_a_long_prompt_at_fault_is_found_without_a_prefix_cache(monkeypatch):
    """The prompt takes several steps, and each failure starts it anew."""
    engine = engine_of(prefix_cache="none", token_budget=4, max_running=4)
    poison_sampling(engine, monkeypatch)
    long = GenerationRequest((POISON, *range(5, 30)), 4)
    bad, good = engine.submit(long), engine.submit(requests()[0])
    outputs = []
    for _ in range(60):
        outputs += engine.step()
    assert engine.is_idle
    assert [one.request_id for one in outputs if one.error is not None] == [bad]
    assert sum(len(one.tokens) for one in outputs if one.request_id == good) == 3
