"""The engine thread: many threads and coroutines at once get the bits of each request alone, and
whatever becomes of callers, loops, forks and failures, nothing hangs and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from tests.engine.line_faults import check_engine, checkpoint_of
from weft.core.errors import DataError, EngineError, UsageError
from weft.engine.async_engine import MAX_FAILURES, AsyncEngine
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import GenerationRequest, RequestOutput
from weft.sampling.params import SamplingParams

SMALL = EngineConfig(page_size=4, cache_gib=1e-9)
DRAWN = SamplingParams(temperature=0.9, seed=3)
REQUESTS = [
    GenerationRequest((5, 9, 30, 7, 8 + n % 5), 3 + n % 7, sampling=DRAWN, n=1 + n % 3)
    for n in range(12)
]


def make_engine(config: EngineConfig = SMALL) -> Engine:
    checkpoint = checkpoint_of("gqa")
    return Engine(checkpoint.model, checkpoint.tokenizer, config)


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    with AsyncEngine(make_engine()) as one:
        yield one


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def alone() -> list[list[tuple[list[int], str]]]:
    client = EngineClient(make_engine(), is_threaded=False)
    return [parts(next(client.completions([request]))) for request in REQUESTS]


def parts(completions: list[Any]) -> list[tuple[list[int], str]]:
    return [(one.tokens, one.text) for one in completions]


def check_nothing_left(engine: AsyncEngine) -> None:
    wait_until(lambda: engine.engine.is_idle and not engine.commands)
    inner, pool = engine.engine, engine.engine.kv_cache.pool
    engine.call(check_engine).result()
    assert not inner.requests and not inner.samples and not engine.receivers
    assert pool.num_free + pool.num_evictable == pool.num_usable


async def collect(engine: AsyncEngine, request: GenerationRequest) -> list[tuple[list[int], str]]:
    tokens: list[list[int]] = [[] for _ in range(request.n)]
    texts = [""] * request.n
    async for output in engine.stream(request):
        tokens[output.index] += output.tokens
        texts[output.index] += output.text
    return list(zip(tokens, texts, strict=True))


def test_coroutines_get_what_each_request_gives_alone(engine):
    async def run() -> list[Any]:
        return await asyncio.gather(*(collect(engine, one) for one in REQUESTS * 3))

    assert asyncio.run(run()) == alone() * 3
    check_nothing_left(engine)


def test_threads_share_one_loaded_model():
    with LoadedModel(checkpoint_of("gqa"), SMALL) as model:
        options = {"temperature": 0.9, "seed": 4}
        prompts = [f"the cat {'a dog ' * (n % 4)}" for n in range(8)]
        expected = [model.generate(prompt, 9, **options) for prompt in prompts]
        results: SimpleQueue[tuple[int, Any]] = SimpleQueue()

        def use(number: int) -> None:
            for turn in range(8):
                index = (number + turn) % 8
                if turn % 3 == 2:
                    next(model.generate(prompts[index], 9, stream=True), None)  # and dropped
                results.put((index, model.generate(prompts[index], 9, **options)))

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results.qsize() == 64
        for _ in range(64):
            index, text = results.get()
            assert text == expected[index]
        check_nothing_left(model.client.async_engine)


def test_one_stream_has_the_outputs_of_several_requests(engine):
    async def run() -> dict[tuple[str, int], list[int]]:
        stream, tokens = engine.stream(*REQUESTS), {}
        async for output in stream:
            tokens.setdefault((output.request_id, output.index), []).extend(output.tokens)
        return [
            [tokens[name, index] for index in range(one.n)]
            for name, one in zip(stream.ids, REQUESTS, strict=True)
        ]

    assert asyncio.run(run()) == [[tokens for tokens, _ in one] for one in alone()]


def test_a_loop_is_woken_once_per_step(engine):
    async def run() -> int:
        loop, wakeups = asyncio.get_running_loop(), []
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (wakeups.append(1), real(*args))[1]  # type: ignore
        requests = [GenerationRequest((5, n), 6) for n in range(6, 12)]
        steps = engine.engine.scheduler.statistics.steps
        streams = [engine.stream(one) for one in requests]
        for stream in streams:
            async for _ in stream:
                pass
        return len(wakeups) - (engine.engine.scheduler.statistics.steps - steps)

    assert asyncio.run(run()) <= 1


def test_a_cancelled_task_and_a_dropped_stream_give_their_pages_back(engine):
    long = GenerationRequest((5, 9, 30), 30)

    async def run() -> None:
        task = asyncio.create_task(collect(engine, long))
        kept, dropped = engine.stream(long), engine.stream(long)
        await anext(kept)
        del dropped
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        kept.close()
        with pytest.raises(StopAsyncIteration):
            await anext(kept)

    asyncio.run(run())
    check_nothing_left(engine)


def test_times_and_cached_tokens_of_a_stream_are_known(engine):
    async def run() -> tuple[int, float]:
        request = GenerationRequest((5, 9, 30, 7, 8, 6, 40, 41, 9), 2)
        await collect(engine, request)
        stream = engine.stream(request)
        await anext(stream)
        (times,) = stream.times.values()
        return times.num_cached, times.queue_seconds

    num_cached, seconds = asyncio.run(run())
    assert num_cached == 8 and 0 <= seconds < 5


def test_an_event_loop_that_is_closed_leaves_nothing(engine):
    streams = []

    async def run() -> None:
        streams.append(engine.stream(GenerationRequest((5, 9, 30), 30)))

    asyncio.run(run())
    streams.clear()
    check_nothing_left(engine)


def test_a_rejected_request_raises_where_it_is_submitted(engine):
    with pytest.raises(UsageError, match="max_len is 40"):
        engine.submit(GenerationRequest((5,) * 60, 3), print)
    with pytest.raises(UsageError, match="id 9999"):
        engine.submit(GenerationRequest((9999,), 3), print)
    check_nothing_left(engine)


def test_a_receiver_that_raises_loses_only_its_own_request(engine, caplog):
    def fail(output: RequestOutput) -> None:
        raise RuntimeError("a bad callback")

    engine.submit(GenerationRequest((5, 9), 30), fail)
    client = EngineClient(engine)
    assert parts(next(client.completions([REQUESTS[0]]))) == alone()[0]
    check_nothing_left(engine)
    assert "its receiver failed" in caplog.text


def test_a_step_that_fails_for_one_request_is_an_error_of_that_request(engine):
    run = engine.engine.runner.run

    def run_plan(plan: Any, chooser: Any) -> Any:
        if any(chunk.request.salt == "bad" for chunk in plan.chunks):
            raise RuntimeError("a bad request")
        return run(plan, chooser)

    engine.engine.runner.run = run_plan  # type: ignore[method-assign]
    client = EngineClient(engine)
    bad = client.generate(GenerationRequest((5, 9), 4, salt="bad"))
    good = client.completions(REQUESTS)
    assert [parts(one) for one in good] == alone()
    with pytest.raises(DataError, match="a bad request"):
        list(bad)
    check_nothing_left(engine)


def test_an_engine_that_cannot_step_ends_its_requests_and_refuses_others(engine, caplog):
    def step() -> list[RequestOutput]:
        raise MemoryError("no memory")

    engine.engine.step = step  # type: ignore[method-assign]
    client = EngineClient(engine)
    with pytest.raises(DataError, match="the engine stopped with MemoryError: no memory"):
        list(client.generate(REQUESTS[0]))
    assert engine.num_failures == MAX_FAILURES and not engine.is_alive
    with pytest.raises(EngineError, match="the engine has stopped after MemoryError"):
        client.submit(REQUESTS[0])
    assert "engine=stopped" in caplog.text


def test_closing_ends_the_thread_and_the_requests():
    engine = AsyncEngine(make_engine())
    client = EngineClient(engine)
    stream = client.generate(GenerationRequest((5, 9, 30), 30))
    next(stream)
    engine.close()
    assert engine.thread is not None and not engine.thread.is_alive()
    with pytest.raises(DataError, match="the engine was closed"):
        list(stream)
    with pytest.raises(UsageError, match="the engine is closed"):
        client.submit(REQUESTS[0])


def test_an_engine_that_is_dropped_ends_its_thread():
    engine = AsyncEngine(make_engine())
    assert next(EngineClient(engine).completions([REQUESTS[0]]))
    thread, ref = engine.thread, weakref.ref(engine.engine)
    assert thread is not None
    del engine
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    gc.collect()
    assert ref() is None


def test_functions_run_between_two_steps(engine):
    client = EngineClient(engine)
    stream = client.generate(GenerationRequest((5, 9, 30), 30))
    next(stream)
    name = engine.call(lambda one: threading.current_thread().name).result()
    assert name == "weft-engine"
    assert client.call(lambda one: one.statistics()).running == 1
    with pytest.raises(ZeroDivisionError):
        client.call(lambda one: 1 // 0)
    stream.close()
    check_nothing_left(engine)


def test_a_fork_is_told_instead_of_waiting_forever(engine):
    client = EngineClient(engine)
    assert next(client.completions([REQUESTS[0]]))
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:  # no pytest in here
        try:
            client.submit(REQUESTS[0])
            theirs.send("it was accepted")
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")
        os._exit(0)
    assert ours.poll(20)
    assert "UsageError: this engine belongs to process" in ours.recv()
    os.waitpid(child, 0)


def test_the_engine_thread_uses_the_callers_number_of_threads(engine):
    before = torch.get_num_threads()
    client = EngineClient(engine)
    try:
        for number in (2, 1):
            torch.set_num_threads(number)
            assert next(client.completions([REQUESTS[0]]))
            assert client.call(lambda one: torch.get_num_threads()) == number
    finally:
        torch.set_num_threads(before)


PROGRAM = """
import sys
from tests.engine.test_async_engine import *
client = EngineClient(AsyncEngine(make_engine()))
stream = client.generate(GenerationRequest((5, 9, 30), 30))
next(stream)
print("running", flush=True)
"""


def test_a_program_ends_while_its_engine_runs():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")
