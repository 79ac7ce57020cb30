"""Iterators over results: whatever becomes of them, pages and queue entries come back within one
step. An exception at any line of a call leaves nothing behind, and other requests unchanged."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.line_faults import (
    FAULTS,
    LineFault,
    LineRecorder,
    check_engine,
    checkpoint_of,
    first_line,
    lines_of,
)
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import GREEDY, GenerationRequest
from weft.engine.request_iterator import RequestIterator

ONE = GenerationRequest((5, 9, 30, 7, 8), 6)
SEVERAL = [ONE, GenerationRequest((5, 9, 31), 4, n=2), GenerationRequest((5, 9, 30, 7, 6), 3)]
SEARCHES = [GenerationRequest((5, 9, n), 4, beam=BeamConfig(2)) for n in (30, 31)]
TEXTS = [[5, 6, 7], [8, 9], [30, 31, 32, 33]]


@pytest.fixture
def client() -> EngineClient:
    checkpoint = checkpoint_of("gqa")
    config = EngineConfig(page_size=4, cache_gib=1e-9)
    return EngineClient(Engine(checkpoint.model, checkpoint.tokenizer, config), is_threaded=False)


OPENERS: dict[str, Callable[[EngineClient], Iterator[Any]]] = {
    "generate": lambda client: client.generate(ONE),
    "stream": lambda client: client.stream(client.submit(ONE)),
    "completions": lambda client: client.completions(SEVERAL),
    "search": lambda client: client.search(SEARCHES),
    "results": lambda client: client.results(client.submit_all(SEARCHES)),
    "embeddings": lambda client: client.embeddings(TEXTS),
    "scores": lambda client: client.scores(TEXTS),
}


def check_nothing_left(client: EngineClient) -> None:
    engine, pool = client.engine, client.engine.kv_cache.pool
    check_engine(engine)
    assert engine.is_idle and not engine.requests and not engine.samples and not engine.beams
    assert not client.output_queues
    assert not client.async_engine.received and not client.async_engine.commands
    assert not client.async_engine.receivers
    assert pool.num_free + pool.num_evictable == pool.num_usable


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("num_read", [0, 1])
def test_an_iterator_that_is_dropped_gives_everything_back_within_one_step(name, num_read, client):
    iterator = OPENERS[name](client)
    for _ in range(num_read):
        next(iterator)
    assert client.output_queues or num_read
    del iterator
    client.step()
    check_nothing_left(client)


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("num_read", [0, 1, 99])
def test_an_iterator_that_is_closed_or_read_gives_everything_back_at_once(name, num_read, client):
    iterator = OPENERS[name](client)
    for _ in range(num_read):
        next(iterator, None)
    if num_read < 99:
        iterator.close()
    check_nothing_left(client)
    assert next(iterator, None) is None


def test_a_drop_in_another_thread_waits_for_the_next_step(client):
    streams = [client.generate(ONE) for _ in range(8)]
    kept = client.submit(ONE)
    thread = threading.Thread(target=streams.clear)
    thread.start()
    thread.join()
    assert len(client.async_engine.commands) == 17, "nothing changes in another thread"
    client.step()
    assert list(client.engine.requests) == [kept]
    assert len(list(client.stream(kept))) == 6
    check_nothing_left(client)


def test_streams_in_a_reference_cycle_are_collected(client):
    for _ in range(5):
        cycle: list[Any] = [client.generate(ONE)]
        cycle.append(cycle)
    del cycle
    gc.collect()
    client.step()
    check_nothing_left(client)


def test_the_streams_of_a_loaded_model_give_everything_back():
    checkpoint = checkpoint_of("gqa")
    model = LoadedModel(checkpoint, EngineConfig(page_size=4, cache_gib=1e-9), is_threaded=False)
    pieces = model.generate("the cat", 9, stream=True)
    first = next(pieces)
    pieces.close()
    check_nothing_left(model.client)
    for _ in range(3):
        model.generate("the cat", 9, stream=True)
        model.completions(["a dog", "the cat"], 9)
    assert len(model.client.async_engine.commands) == 6 + 9, "nine requests came and went"
    assert model.generate("the cat", 9, temperature=0.0).startswith("") and first
    check_nothing_left(model.client)


def use(client: EngineClient, name: str) -> None:
    """Open an iterator and read one result; the rest is dropped."""
    with OPENERS[name](client) as iterator:
        next(iterator)


CALLS: dict[str, Callable[[EngineClient], object]] = {
    **{name: lambda client, name=name: use(client, name) for name in OPENERS},
    "submit": lambda client: client.abort(client.submit(ONE)),
    "abort": lambda client: [client.abort(name) for name in client.submit_all(SEVERAL)],
}


CALLERS_OWN = [CALLS[name] for name in ("submit", "abort", "stream", "results")]
"""After an exception the caller may still have to abort the requests whose ids it has."""


def run_call(call: Callable[[EngineClient], object], tracer: Any) -> tuple[EngineClient, list[Any]]:
    """A call while another request runs; the outputs of the other one."""
    checkpoint = checkpoint_of("gqa")
    config = EngineConfig(page_size=4, cache_gib=1e-9)
    client = EngineClient(Engine(checkpoint.model, checkpoint.tokenizer, config), is_threaded=False)
    other = client.submit(GenerationRequest((5, 9, 30, 7, 9, 12), 9, sampling=GREEDY))
    client.step()
    try:
        with tracer:
            call(client)
    except FAULTS as error:
        assert "/weft/" in str(error), error
    client.step()
    left = {*client.engine.requests, *client.output_queues} - {other}
    assert call in CALLERS_OWN or not left, "a request is left that nobody can abort"
    for name in left:
        client.abort(name)
    return client, [output.tokens for output in client.stream(other)]


def check_lines(name: str, start: int, every: int) -> None:
    recorder = LineRecorder()
    _, expected = run_call(CALLS[name], recorder)
    own = (
        "client.py",
        "async_engine.py",
        "request_iterator.py",
        "engine.py",
        "engine_state.py",
        "scheduler_state.py",
    )
    ignored = {  # Python reports and drops an exception in a finalizer
        (code.co_filename, number)
        for code in (RequestIterator.__del__.__code__,)
        for number in lines_of(code)
    }
    lines = [one for one in recorder.lines if one[0].endswith(own) and one not in ignored]
    assert len(lines) > 30
    for index, line in list(enumerate(lines))[start::every]:
        client, outputs = run_call(CALLS[name], LineFault(line, FAULTS[index % 3]))
        assert outputs == expected, line
        check_nothing_left(client)


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_a_line_of_a_call_leaves_nothing_behind(name):
    check_lines(name, first_line(20), 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_every_line_of_a_call_leaves_nothing_behind(name):
    check_lines(name, 0, 1)
