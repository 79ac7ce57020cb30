"""Prefills divided by layers among the steps of a stream: the same bits, for every kind of layers,
with cancellations, preemptions and drafts in between."""

from __future__ import annotations

from functools import reduce
from itertools import count
from operator import add
from typing import Any

import pytest

from tests.engine.line_faults import LayeredConfig, check_engine, checkpoint_of
from tests.engine.test_attention_rows import MODELS
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.engine.scheduling import layered_prefill
from weft.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
PROMPT = (5, 9, 30, 7, 8, 6, 40, 41, 9)
REQUESTS = (
    GenerationRequest((5, 6, 7), 36, sampling=GREEDY, is_streamed=True),
    GenerationRequest(PROMPT, 4, sampling=GREEDY),
    GenerationRequest((*PROMPT[:5], 8, 8), 4, sampling=GREEDY, n=2),
    GenerationRequest((*PROMPT[:3], 20, 21, 22), 3, beam=BeamConfig(2), ends=frozenset([2])),
)
SMALL = {"page_size": 4, "cache_gib": 1e-3}
DECODERS = [name for name, model in MODELS.items() if model["kind"] == "decoder"]


@pytest.fixture(autouse=True)
def three_tokens_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps end within a layer and within a chunk."""
    monkeypatch.setattr(layered_prefill, "BLOCK", 3)


class LayeredRun:
    """The requests in one engine; the first one arrives before the others."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        checkpoint = checkpoint_of(model)
        clock = count()
        self.engine = Engine(
            checkpoint.model, checkpoint.tokenizer, config, now=lambda: 1e-6 * next(clock)
        )
        self.results: dict[tuple[str, int], Any] = {}
        self.num_partial = 0
        """Steps after which some layers of a chunk were computed."""

    def step(self) -> None:
        for one in self.engine.step():
            assert one.error is None, one.error
            parts = (one.tokens, one.text, [vars(each) for each in one.logprobs], one.hypotheses)
            self.results.setdefault((one.request_id, one.index), []).append(parts)
        self.num_partial += self.engine.scheduler.state.layered is not None
        check_engine(self.engine)

    def start(self) -> list[str]:
        """Submit the requests; the ids of all but the stream."""
        self.engine.submit(REQUESTS[0])
        for _ in range(4):
            self.step()
        return [self.engine.submit(request) for request in REQUESTS[1:]]

    def finish(self) -> dict[tuple[str, int], Any]:
        while not self.engine.is_idle:
            self.step()
        pool = self.engine.kv_cache.pool
        assert pool.num_free + pool.num_evictable == pool.num_usable
        return {
            key: [reduce(add, parts) for parts in zip(*outputs, strict=True)]
            for key, outputs in self.results.items()
        }


def run_all(model: str, config: EngineConfig) -> tuple[dict[tuple[str, int], Any], int]:
    run = LayeredRun(model, config)
    run.start()
    return run.finish(), run.num_partial


@pytest.mark.parametrize("model", DECODERS)
def test_layers_in_several_steps_have_the_bits_of_one(model):
    expected, num_before = run_all(model, EngineConfig(**SMALL))
    divided, num_partial = run_all(model, LayeredConfig(**SMALL))
    assert num_before == 0 and num_partial >= 8
    assert divided == expected


@pytest.mark.parametrize("settings", [{"preempt_every": 3}, {"speculate": True}, {"miss_every": 2}])
def test_preemptions_and_drafts_between_layers_change_no_bits(settings):
    expected, _ = run_all("gqa", EngineConfig(**SMALL))
    divided, num_partial = run_all("gqa", LayeredConfig(**SMALL, **settings))
    assert num_partial >= 2
    assert divided == expected


def test_modules_with_a_hook_compute_the_same_layers():
    expected, _ = run_all("gqa", EngineConfig(**SMALL))
    run = LayeredRun("gqa", LayeredConfig(**SMALL))
    block = run.engine.runner.stack.layers[1]
    run.start()
    while run.engine.scheduler.state.layered is None:
        run.step()
    handle = block.register_forward_hook(lambda *_: None)
    try:
        assert run.finish() == expected
    finally:
        handle.remove()


@pytest.mark.parametrize("index", range(3))
def test_a_request_that_leaves_between_two_layers_takes_only_its_own_rows(index):
    expected, _ = run_all("gqa", EngineConfig(**SMALL))
    run = LayeredRun("gqa", LayeredConfig(**SMALL))
    ids = run.start()
    layered = None
    while layered is None or ids[index] not in layered.chunks:
        assert not run.engine.is_idle, "no layers of this request were computed"
        run.step()
        layered = run.engine.scheduler.state.layered
    run.engine.abort(ids[index])
    check_engine(run.engine)
    results = run.finish()
    assert {key for key in expected if key[0] != ids[index]} == results.keys()
    assert all(results[key] == expected[key] for key in results)


def test_layers_are_not_divided_without_a_stream():
    run = LayeredRun("gqa", LayeredConfig(**SMALL))
    for request in REQUESTS[1:]:
        run.engine.submit(request)
    run.finish()
    assert run.num_partial == 0
