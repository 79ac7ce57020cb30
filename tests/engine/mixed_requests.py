"""Requests of all kinds from careless callers: iterators are read in part, closed, dropped or kept;
requests are aborted; exceptions are raised at random lines; some requests make every step fail.

    run_case(seed)      one engine with NUM_REQUESTS requests; raises if something is wrong

Results that come to their end are those of the requests alone. In the end pages, queue entries,
file descriptors and threads are as in the beginning, and the engine can be garbage collected.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tests.engine.line_faults import FAULTS, SOURCES, Fault, check_engine, checkpoint_of
from weft.core.errors import DataError, EngineError, UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.client import Completion, EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.request import GenerationRequest, RequestOutput
from weft.models.transformer import EncoderDecoder
from weft.sampling.params import SamplingParams

NUM_REQUESTS = 40
MODELS = ("gqa", "mla", "some windows", "t5")
Result = list[list[int]] | list[tuple[list[int], str]]


class CountedFault:
    """Raises an exception at the k-th line of src/weft that is reached while it is active."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.num_left, self.fault = number, fault

    def __enter__(self) -> None:
        sys.settrace(self.enter_function)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def enter_function(self, frame: FrameType, event: str, _: object) -> Any:
        is_ours = frame.f_code.co_filename.startswith(SOURCES)
        return self.count if is_ours and frame.f_code.co_name != "__del__" else None

    def count(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.num_left -= 1
            if self.num_left == 0:
                sys.settrace(None)
                raise self.fault(f"at {frame.f_code.co_filename}:{frame.f_lineno}")
        return self.count


class MixedRequests:
    """One engine with random callers."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        model = rng.choice(MODELS)
        checkpoint = checkpoint_of(model)
        self.client = EngineClient(
            Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**self.settings())),
            is_threaded=False,
        )
        alone = EngineConfig(page_size=4, prefix_cache="none")
        self.alone = EngineClient(
            Engine(checkpoint.model, checkpoint.tokenizer, alone), is_threaded=False
        )
        self.has_source = isinstance(checkpoint.model, EncoderDecoder)
        self.vocab = checkpoint.model.config.vocab_size
        self.common = rng.choices(range(5, self.vocab), k=12)
        self.kept: list[Iterator[Any]] = []
        self.submitted: list[str] = []
        self.num_requests = self.num_compared = self.num_faults = self.num_failed = 0
        self.real_run = self.client.engine.runner.run
        self.client.engine.runner.run = self.run_plan  # type: ignore[method-assign]

    def settings(self) -> dict[str, Any]:
        """A pool that is far too small, and random limits."""
        rng = self.rng
        return {
            "page_size": 4,
            "cache_gib": 1e-9,
            "prefix_cache": rng.choice(["radix", "radix", "hash", "none"]),
            "speculate": rng.random() < 0.3,
            "token_budget": rng.choice([9, 40, 2048]),
            "num_steps": rng.choice([1, 4, 8]),
            "preempt_every": rng.choice([None, None, 5]),
        }

    def run_plan(self, plan: Any, chooser: Any) -> Any:
        """Requests with salt "bad" make every step fail, after its forward pass."""
        vectors = self.real_run(plan, chooser)
        if any(chunk.request.salt == "bad" for chunk in plan.chunks):
            raise RuntimeError("a bad request")
        return vectors

    def request(self, width: int = 0) -> GenerationRequest:
        rng = self.rng
        number, own = rng.randrange(1, 12), rng.choices(range(5, self.vocab), k=rng.randrange(1, 5))
        source = tuple(self.common[: rng.randrange(1, 9)]) if self.has_source else None
        sampling = SamplingParams(temperature=rng.choice([0.0, 0.9]), seed=rng.randrange(99))
        more: dict[str, Any] = {"ends": frozenset([2]), "salt": "bad" * (rng.random() < 0.06)}
        if width:
            more["beam"] = BeamConfig(width)
        elif rng.random() < 0.2 and not self.has_source:
            more["grammar"] = make_grammar("regex", "[a-d ]{3,}x")
        elif rng.random() < 0.2:
            more["n"] = rng.randint(2, 3)
        prompt = (*self.common[:number], *own)
        return GenerationRequest(prompt, rng.randrange(1, 12), source, sampling, **more)

    def call(self) -> None:
        """One call of a random caller."""
        kind = self.rng.choice(["completions", "completions", "search", "texts", "submit"])
        requests = [self.request() for _ in range(self.rng.randint(1, 4))]
        self.num_requests += len(requests)
        if kind == "submit":
            self.submitted.append(self.client.submit(requests[0]))
            self.client.abort(self.submitted[-1])
        elif kind == "texts":
            texts = [list(request.prompt) for request in requests]
            self.use(self.client.embeddings(texts))
        elif kind == "search":
            requests = [self.request(width=self.rng.choice([1, 3])) for _ in requests]
            results = self.use(self.client.search(requests))
            found = {
                index: [one.ids for one in output.hypotheses]
                for index, output in results or ()
                if self.has_not_failed(output)
            }
            self.compare(found, requests)
        else:
            completed = self.use(self.client.completions(requests))
            self.compare({i: parts_of(one) for i, one in enumerate(completed or ())}, requests)

    def has_not_failed(self, output: RequestOutput) -> bool:
        self.num_failed += output.error is not None
        return output.error is None

    def use(self, iterator: Iterator[Any]) -> list[Any] | None:
        """All results, or None if the iterator was left early: closed, dropped or kept."""
        way = self.rng.choice(["read", "read", "close", "drop", "keep"])
        if way == "read":
            return list(iterator)
        for _ in range(self.rng.randrange(3)):
            next(iterator, None)
        if way == "close":
            iterator.close()  # type: ignore[attr-defined]
        elif way == "keep":
            self.kept.append(iterator)
        return None

    def compare(self, found: dict[int, Result], requests: list[GenerationRequest]) -> None:
        for index, result in found.items():
            request = requests[index]
            if request.beam is not None:
                ((_, output),) = self.alone.search([request])
                expected = [one.ids for one in output.hypotheses]
                assert result == expected, f"{request} differs from alone"
            else:
                (completions,) = self.alone.completions([request])
                assert result == parts_of(completions), f"{request} differs from alone"
            self.num_compared += 1

    def disturbed_call(self) -> None:
        """A call that may fail or be interrupted at a random line."""
        number = int(10 ** self.rng.uniform(0, 4.5))
        try:
            if self.rng.random() < 0.25:
                with CountedFault(number, self.rng.choice(FAULTS)):
                    self.call()
            else:
                self.call()
        except (DataError, EngineError, UsageError) as error:
            is_expected = "a bad request" in str(error) or "pages" in str(error)
            assert is_expected or "exclude every token" in str(error), error
            self.num_failed += 1
        except FAULTS as error:
            assert SOURCES in str(error), repr(error)
            self.num_faults += 1

    def run(self) -> None:
        while self.num_requests < NUM_REQUESTS:
            self.disturbed_call()
            if self.client.engine.state.needs_recovery:
                self.client.step()
            check_engine(self.client.engine)
        self.kept.clear()
        for request_id in self.submitted:  # again: a fault may have ended the call that aborts it
            self.client.abort(request_id)
        self.client.step()
        check_all_returned(self.client)


def parts_of(completions: list[Completion]) -> list[tuple[list[int], str]]:
    return [(one.tokens, one.text) for one in completions]


def check_all_returned(client: EngineClient) -> None:
    """No pages, queue entries or requests are left."""
    engine, pool = client.engine, client.engine.kv_cache.pool
    check_engine(engine)
    assert engine.is_idle and not engine.requests and not engine.samples and not engine.beams
    assert not client.output_queues
    assert not client.async_engine.received and not client.async_engine.commands
    assert not client.async_engine.receivers
    assert pool.num_free + pool.num_evictable == pool.num_usable


def run_case(seed: int) -> None:
    for model in MODELS:
        checkpoint_of(model)
    num_files, num_threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    mixed = MixedRequests(seed)
    engine = weakref.ref(mixed.client.engine)
    logging.disable(logging.CRITICAL)  # log records of failed steps refer to their frames
    try:
        mixed.run()
    finally:
        logging.disable(logging.NOTSET)
    del mixed
    gc.collect()
    assert engine() is None, "the engine is still referenced"
    assert len(os.listdir("/proc/self/fd")) == num_files, "file descriptors are left open"
    assert threading.active_count() == num_threads, "threads are left"
