"""The real engine under fire: requests of every kind come, are cancelled, fail or are interrupted,
in a pool that is far too small. After every step the invariants of the scheduler are counted from
scratch, the events give the same pages, and nobody who has gone holds one; whoever ends has the
same bits as alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from weft.cache.events import EventLog
from weft.cache.replay import ReplayedState, replay
from weft.core.errors import EngineError, UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.sampling_step import StepChooser
from weft.engine.scheduling.audit import audit, holders
from weft.models.transformer import EncoderDecoder
from weft.sampling.params import SamplingParams

from . import plain
from .test_attention_rows import MODELS
from .tiny import tiny

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gqa": ("gqa", {}),
    "mla, hashed, drafts": ("mla", {"prefix_cache": "hash", "speculate": True}),
    "windows, chunks": ("some windows", {"token_budget": 14, "preempt_every": 9}),
    "sources": ("t5", {"encoder_budget": 12, "preempt_every": 11}),
}
STEPS = 80


class BrokenError(BaseException):
    """An interrupt, as KeyboardInterrupt is one."""


class Fire:
    """One engine with random callers."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        checkpoint = tiny(**MODELS[name])
        # the smallest pool that is allowed: two sequences of the full length
        settings = {"page_size": 4, "cache_gib": 1e-9, **config}
        self.engine = Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**settings))
        self.alone = Engine(
            checkpoint.model, checkpoint.tokenizer, EngineConfig(page_size=4, prefix_cache="none")
        )
        self.rng, self.log, self.replayed = random.Random(name), EventLog(None), ReplayedState()
        self.engine.listen(self.log)
        self.vocab = checkpoint.model.config.vocab_size
        self.common = self.rng.choices(range(5, self.vocab), k=12)
        self.asked: dict[str, GenerationRequest] = {}
        self.found: dict[tuple[str, int], list[Any]] = {}
        self.done: set[str] = set()
        self.gone: set[str] = set()
        """Cancelled or failed."""
        self.num_interrupts = self.num_repeated = 0

    def writing(self) -> GenerationRequest:
        rng, vocab = self.rng, self.vocab
        prompt = self.common[: rng.randrange(1, 13)] + rng.choices(
            range(5, vocab), k=rng.randrange(4)
        )
        source = tuple(self.common[: rng.randrange(1, 9)])
        has_source = isinstance(self.engine.model, EncoderDecoder)
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.9]), seed=rng.randrange(99), logprobs=1
        )
        kind = rng.choice(["plain", "plain", "samples", "beam", "grammar", "no token"])
        more: dict[str, Any] = {"ends": frozenset([2])}
        if kind == "samples":
            more["n"] = rng.randint(2, 3)
        elif kind == "beam":
            more["beam"] = BeamConfig(rng.randint(1, 3))
        elif kind in ("grammar", "no token") and not has_source:
            more["grammar"] = make_grammar("regex", "[a-d ]{3,}x")
            if kind == "no token":  # what the grammar would allow is banned
                sampling = SamplingParams(banned=tuple(range(1, vocab)))
        given = source if has_source else None
        return GenerationRequest(tuple(prompt), rng.randrange(1, 24), given, sampling, **more)

    def arrive(self) -> None:
        if len(self.engine.scheduler.state.groups) < 14 and self.rng.random() < 0.7:
            writing = self.writing()
            with suppress(UsageError):  # it could need more pages than there are
                self.asked[self.engine.submit(writing)] = writing

    def disturb(self) -> None:
        jobs = list(self.engine.scheduler.state.groups)
        if jobs and self.rng.random() < 0.1:
            name = self.rng.choice(jobs)
            self.engine.abort(name)
            self.gone.add(name)
            self.check()

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chance = self.rng.random()
        with monkeypatch.context() as patch:
            if chance < 0.05:
                patch.setattr(self.engine.runner, "run", self.failing(self.engine.runner.run))
            elif chance < 0.1:
                patch.setattr(StepChooser, "results", self.failing(StepChooser.results))
            known = set(self.engine.scheduler.state.groups)
            try:
                for update in self.engine.step():
                    self.take(update)
            except BrokenError:
                self.num_interrupts += 1
                assert known == set(self.engine.scheduler.state.groups), (
                    "an interrupt loses nothing"
                )
        self.check()

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The same, but it is interrupted in the end, or fails there once: rows are written by
        then, tokens are taken."""
        error = self.rng.choice([BrokenError, RuntimeError, MemoryError])
        has_failed: list[bool] = []

        def fail(*args: Any) -> Any:
            result = real(*args)
            if not has_failed:
                has_failed.append(True)
                self.num_repeated += error is not BrokenError
                raise error
            return result

        return fail

    def take(self, update: RequestOutput) -> None:
        name = update.request_id
        if update.error is not None:
            assert self.asked[name].sampling.banned, update.error
            self.gone.add(name)
            return
        found = self.found.setdefault((name, update.index), [])
        found += zip(update.tokens, update.logprobs, strict=False)
        found += update.hypotheses
        if update.finish is not None and not self.engine.is_active(name):
            self.done.add(name)

    def check(self) -> None:
        state, pool = self.engine.scheduler.state, self.engine.kv_cache.pool
        audit(state)
        replay(self.log.events, self.replayed)
        self.log.events.clear()
        assert self.replayed.counts == pool.reference_counts()
        assert self.replayed == self.engine.cache_state()
        owners = {owner for held in self.replayed.holders.values() for owner in held}
        names = {owner.split("/")[0] for owner in owners} - {"prefix", "sources"}
        assert names <= set(state.groups), f"{names - set(state.groups)} have gone but hold pages"
        assert not (self.gone | self.done) & set(state.groups), (
            "a removed request is still scheduled"
        )
        known = {*self.engine.samples, *self.engine.beams, *self.engine.requests}
        assert known <= set(state.groups), f"{known - set(state.groups)} are remembered for ever"

    def check_results(self) -> None:
        """The same bits as alone, request by request."""
        for name in sorted(self.done):
            asked = self.alone.submit(self.asked[name])
            expected: dict[int, list[Any]] = {}
            while not self.alone.is_idle:
                for update in self.alone.step():
                    assert update.request_id == asked
                    line = expected.setdefault(update.index, [])
                    line += zip(update.tokens, update.logprobs, strict=False)
                    line += update.hypotheses
            found = {i: line for (owner, i), line in self.found.items() if owner == name}
            assert found == expected, f"{name} differs from running alone: {self.asked[name]}"


@pytest.mark.parametrize("case", CASES)
def test_the_engine_keeps_its_promises_whatever_its_callers_do(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fire = Fire(*CASES[case])
    for _ in range(STEPS):
        fire.arrive()
        fire.disturb()
        fire.step(monkeypatch)
    while not fire.engine.is_idle:
        for update in fire.engine.step():
            fire.take(update)
        fire.check()
    assert fire.done | fire.gone == set(fire.asked) and not fire.done & fire.gone
    counts = fire.engine.statistics()
    print(f"{len(fire.done)} done, {len(fire.gone)} gone, {counts}")
    assert len(fire.done) > 20 and len(fire.gone) > 4
    assert fire.num_interrupts and fire.num_repeated
    assert counts.preemptions and counts.evictions and counts.hit_tokens
    assert counts.pages_in_use == 0 and counts.waiting == counts.running == 0
    fire.check_results()


def engine_of(kind: str = "decoder") -> Engine:
    checkpoint = tiny(kind)
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(page_size=4, cache_gib=1e-3))


def test_an_interrupt_after_the_forward_pass_loses_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of()
    client = EngineClient(engine, is_threaded=False)
    name, text = (
        client.submit(GenerationRequest((5, 9, 30, 7, 8), 6)),
        client.submit_embedding([5, 6, 7]),
    )

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StepChooser, "results", fail)
        with pytest.raises(KeyboardInterrupt):
            client.step()
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_usable
    tokens = [token for update in client.stream(name) for token in update.tokens]
    assert tokens == plain.greedy(engine.model, [5, 9, 30, 7, 8], 6)
    ((_, update),) = client.results([text])
    assert update.vectors_TD is not None and len(update.vectors_TD) == 3
    assert engine.is_idle


def test_a_request_that_was_aborted_has_no_next_output() -> None:
    client = EngineClient(engine_of(), is_threaded=False)
    name = client.submit(GenerationRequest((5, 9, 30, 7, 8), 6))
    client.abort(name)
    with pytest.raises(EngineError, match=f"request {name} is not active: it was aborted"):
        next(client.stream(name))
    with pytest.raises(EngineError, match=f"request {name} is not active"):
        list(client.results([name]))


def test_a_request_that_fails_has_given_everything_back_when_its_error_is_told() -> None:
    engine = engine_of()
    banned = SamplingParams(banned=tuple(range(1, engine.model.config.vocab_size)))
    grammar = make_grammar("regex", "[a-d ]{3,}x")
    bad = engine.submit(
        GenerationRequest((5, 9, 30, 7, 8), 6, sampling=banned, grammar=grammar, n=2)
    )
    good = engine.submit(GenerationRequest((6, 9, 30), 6))
    updates = engine.step()
    assert {update.request_id for update in updates if update.error} == {bad}
    assert not engine.is_active(bad) and engine.is_active(good)
    held = {owner for owners in holders(engine.scheduler.state).values() for owner in owners}
    assert held == {f"{good}/0", "prefix"}
    audit(engine.scheduler.state)
