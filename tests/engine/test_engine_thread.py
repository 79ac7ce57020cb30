"""Several engines on one thread: equal shares, one engine at a time, and whatever becomes of one of
them, the others continue with the same bits."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.engine.line_faults import check_engine
from tests.engine.test_async_engine import SMALL, collect, parts, wait_until
from tests.engine.tiny import tiny
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import DataError, EngineError, UsageError
from weft.engine.async_engine import AsyncEngine
from weft.engine.client import EngineClient
from weft.engine.engine import Engine
from weft.engine.engine_thread import EngineThread
from weft.engine.request import GenerationRequest, RequestOutput
from weft.sampling.params import SamplingParams

DRAWN = SamplingParams(temperature=0.9, seed=3)
REQUESTS = [
    GenerationRequest((5, 9, 30, 7, 8 + n % 5), 4 + n % 20, sampling=DRAWN, n=1 + n % 3)
    for n in range(12)
]
LONG = GenerationRequest((5, 9), 37)


class SimulatedEngine:
    """An engine whose steps take a chosen time on a clock that the test reads."""

    def __init__(self, clock: list[float], seconds: float, num_steps: int = 10**9) -> None:
        self.clock, self.seconds, self.num_steps = clock, seconds, num_steps
        self.commands: list[Any] = []
        self.is_closed = self.has_ended = False
        self.failure: BaseException | None = None
        self.used, self.shared = 0.0, list[bool]()

    @property
    def has_commands(self) -> bool:
        return bool(self.commands)

    @property
    def has_work(self) -> bool:
        return self.num_steps > 0

    def run_commands(self) -> None:
        while self.commands:
            self.commands.pop(0)()

    def run_step(self, is_shared: bool) -> None:
        self.num_steps -= 1
        self.use(self.seconds)
        self.shared.append(is_shared)

    def use(self, seconds: float) -> None:
        self.clock[0] += seconds
        self.used += seconds

    def fail(self, error: BaseException) -> None:
        self.failure = error

    def end(self) -> None:
        self.has_ended = True


def simulate(*seconds: float) -> tuple[EngineThread, list[SimulatedEngine]]:
    clock = [0.0]
    thread = EngineThread(now=lambda: clock[0])
    engines = [SimulatedEngine(clock, one) for one in seconds]
    for engine in engines:
        thread.add(engine)
    return thread, engines


def test_measured_times_are_shared_equally_within_one_step():
    thread, engines = simulate(0.001, 0.013, 0.2)
    for _ in range(5000):
        assert thread.run_turn()
        for a in engines:
            assert all(a.used - b.used <= a.seconds + 1e-9 for b in engines)
    assert all(all(engine.shared) for engine in engines)


def test_a_model_alone_is_not_limited_and_gets_every_turn():
    thread, (a, b) = simulate(0.01, 0.01)
    b.num_steps = 0
    for _ in range(10):
        assert thread.run_turn()
    assert a.shared == [False] * 10 and not b.shared
    a.num_steps = 0
    assert not thread.run_turn()


def test_commands_run_before_every_step_and_their_time_counts():
    thread, (a, b) = simulate(0.01, 0.01)
    seen: list[float] = []
    for _ in range(4):
        b.commands.append(lambda: seen.append(b.clock[0]))
        thread.run_turn()
    assert seen == pytest.approx([0.0, 0.01, 0.02, 0.03])
    a.commands.append(lambda: a.use(1.0))
    num_steps = len(a.shared)
    for _ in range(90):
        thread.run_turn()
    assert len(a.shared) == num_steps and a.used - b.used == pytest.approx(0.1)


def test_an_engine_that_fails_leaves_the_others():
    thread, (a, b) = simulate(0.01, 0.01)

    def fail() -> None:
        raise SystemExit("broken")

    a.commands.append(fail)
    for _ in range(5):
        assert thread.run_turn()
    assert isinstance(a.failure, SystemExit) and not a.shared
    assert b.failure is None and b.shared == [False] * 5
    assert not thread.is_closed


def test_closed_and_dropped_engines_are_left_out():
    thread, engines = simulate(0.01, 0.01, 0.01)
    engines[0].is_closed = True
    ref = weakref.ref(engines[1])
    assert thread.run_turn()
    assert engines[0].has_ended and not engines[0].shared
    del engines[1]
    gc.collect()
    assert ref() is None
    assert thread.run_turn() and len(thread.members) == 1


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    one = EngineThread()
    yield one
    one.close()
    assert one.thread is None or not one.thread.is_alive()


@cache
def checkpoint_of(seed: int) -> Checkpoint:
    return tiny("decoder", seed=seed)


def make(thread: EngineThread, seed: int) -> AsyncEngine:
    checkpoint = checkpoint_of(seed)
    return AsyncEngine(Engine(checkpoint.model, checkpoint.tokenizer, SMALL), thread=thread)


@cache
def alone(seed: int) -> list[Any]:
    checkpoint = checkpoint_of(seed)
    engine = Engine(checkpoint.model, checkpoint.tokenizer, SMALL)
    client = EngineClient(engine, is_threaded=False)
    return [parts(next(client.completions([request]))) for request in REQUESTS]


def test_two_models_at_once_give_the_bits_of_each_alone(thread):
    a, b = make(thread, 3), make(thread, 4)

    async def run() -> list[Any]:
        tasks = [collect(engine, one) for one in REQUESTS for engine in (a, b)]
        return await asyncio.gather(*tasks)

    results = asyncio.run(run())
    expected = alone(3), alone(4)
    assert expected[0] != expected[1]
    assert (results[::2], results[1::2]) == expected
    for engine in (a, b):
        engine.call(check_engine).result()
        assert not engine.engine.requests and not engine.receivers
    names = {one.call(lambda _: threading.get_ident()).result() for one in (a, b)}
    assert len(names) == 1


def test_both_models_get_turns_while_both_have_work(thread):
    other, a, b = make(thread, 3), make(thread, 3), make(thread, 4)
    order: list[str] = []
    shared: list[bool] = []
    for name, engine in (("a", a), ("b", b)):
        step, state = engine.engine.step, engine.engine.scheduler.state

        def run_step(name: str = name, step: Any = step, state: Any = state) -> Any:
            order.append(name)
            shared.append(state.is_shared)
            return step()

        engine.engine.step = run_step  # type: ignore[method-assign]
    hold = threading.Event()
    # before the commands of the two, so that both have their requests at the first step
    other.call(lambda engine: hold.wait(60))
    clients = [EngineClient(one) for one in (a, b)]
    iterators = [client.completions(REQUESTS) for client in clients]
    hold.set()
    for iterator in iterators:
        list(iterator)
    first_end = min(len(order) - order[::-1].index(name) for name in "ab")
    assert all(shared[: first_end - 1]) and not shared[-1]
    assert set(order[: first_end - 1]) == {"a", "b"}


def hold_until_closed(engine: AsyncEngine) -> None:
    """Let a step end only when the engine is closed, so that no request ends before."""
    step = engine.engine.step

    def run_step() -> list[RequestOutput]:
        outputs = step()
        wait_until(lambda: engine.is_closed or engine.engine_thread.is_closed)
        return outputs

    engine.engine.step = run_step  # type: ignore[method-assign]


def test_closing_one_engine_leaves_the_other(thread):
    a, b = make(thread, 3), make(thread, 4)
    hold_until_closed(a)
    first = EngineClient(a).generate(LONG)
    second = EngineClient(b).completions(REQUESTS)
    a.close()
    with pytest.raises(DataError, match="the engine was closed"):
        list(first)
    with pytest.raises(UsageError, match="the engine is closed"):
        a.submit(LONG, print)
    assert [parts(one) for one in second] == alone(4)
    assert not a.is_alive and b.is_alive


def test_an_engine_that_stops_leaves_the_other(thread, caplog):
    a, b = make(thread, 3), make(thread, 4)

    def step() -> list[RequestOutput]:
        raise MemoryError("no memory")

    a.engine.step = step  # type: ignore[method-assign]
    second = EngineClient(b).completions(REQUESTS)
    with pytest.raises(DataError, match="the engine stopped with MemoryError: no memory"):
        list(EngineClient(a).generate(LONG))
    with pytest.raises(EngineError, match="the engine has stopped after MemoryError"):
        a.submit(LONG, print)
    assert [parts(one) for one in second] == alone(4)
    assert not a.is_alive and b.is_alive and "engine=stopped" in caplog.text


def test_an_engine_that_is_dropped_is_collected_while_another_runs(thread):
    a, b = make(thread, 3), make(thread, 4)
    assert next(EngineClient(a).completions(REQUESTS[:1]))
    stream = EngineClient(b).generate(LONG)
    next(stream)
    ref = weakref.ref(a.engine)
    del a
    wait_until(lambda: gc.collect() is not None and ref() is None)
    assert list(stream)


def test_a_thread_whose_engines_are_dropped_ends():
    thread = EngineThread()
    engines = [make(thread, seed) for seed in (3, 4)]
    for engine in engines:
        assert next(EngineClient(engine).completions(REQUESTS[:1]))
    inner = thread.thread
    assert inner is not None
    del engine, engines, thread
    gc.collect()
    inner.join(20)
    assert not inner.is_alive()


def test_closing_the_thread_ends_all_engines(thread):
    a, b = make(thread, 3), make(thread, 4)
    for engine in (a, b):
        hold_until_closed(engine)
    streams = [EngineClient(one).generate(LONG) for one in (a, b)]
    thread.close()
    for stream in streams:
        with pytest.raises(DataError, match="the engine was closed"):
            list(stream)
    for engine in (a, b):
        with pytest.raises(UsageError, match="the engine is closed"):
            engine.submit(LONG, print)


def test_a_thread_that_never_ran_can_be_closed():
    thread = EngineThread()
    engine = make(thread, 3)
    thread.close()
    assert not engine.is_alive
    with pytest.raises(UsageError, match="the engine is closed"):
        engine.submit(LONG, print)


def test_an_exception_of_the_thread_itself_ends_all_engines(thread, caplog):
    a, b = make(thread, 3), make(thread, 4)

    def choose(active: Any) -> Any:
        raise RuntimeError("a bug")

    thread.turns.choose = choose  # type: ignore[method-assign]
    stream = EngineClient(a).generate(LONG)
    with pytest.raises(DataError, match="the engine stopped with RuntimeError: a bug"):
        list(stream)
    wait_until(lambda: b.failure is not None)
    for engine in (a, b):
        assert not engine.is_alive
        with pytest.raises(EngineError, match="the engine has stopped after RuntimeError: a bug"):
            engine.submit(LONG, print)
    assert "thread=stopped" in caplog.text
