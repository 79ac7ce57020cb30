"""Closing, failing and dead threads while others submit: each request gets one last output or its
caller an error, each function runs once, and the other engines of the thread continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache, partial
from typing import Any

import pytest

from tests.engine.test_async_engine import wait_until
from tests.engine.test_engine_thread import SimulatedEngine, simulate
from tests.engine.tiny import tiny
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import EngineError, UsageError
from weft.engine.async_engine import AsyncEngine, run_into
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.engine_thread import EngineThread
from weft.engine.request import GenerationRequest, RequestOutput

SMALL = EngineConfig(page_size=4, cache_gib=1e-9)
REQUEST = GenerationRequest((5, 6, 7), 3)


@cache
def checkpoint() -> Checkpoint:
    return tiny("decoder")


def make(thread: EngineThread | None = None, is_threaded: bool = True) -> AsyncEngine:
    engine = Engine(checkpoint().model, checkpoint().tokenizer, SMALL)
    return AsyncEngine(engine, is_threaded, thread=thread)


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    one = EngineThread()
    yield one
    one.close()


def answered(engine: AsyncEngine) -> list[RequestOutput]:
    """The outputs of a request."""
    outputs: list[RequestOutput] = []
    engine.submit(REQUEST, outputs.append)
    wait_until(lambda: outputs and outputs[-1].is_end)
    return outputs


def before_waking(engine: AsyncEngine, function: Any) -> None:
    """Call a function after the next command was queued, before its caller continues."""
    thread = engine.engine_thread
    wake = thread.wake

    def wake_later() -> None:
        thread.wake = wake  # type: ignore[method-assign]
        function()

    thread.wake = wake_later  # type: ignore[method-assign]


def test_a_command_that_the_thread_runs_while_the_engine_is_closed_runs_once(thread):
    """The caller ran it a second time, and the thread ended with an IndexError."""
    a, b = make(thread), make(thread)
    a.call(lambda _: None).result()
    is_answering, may_return = threading.Event(), threading.Event()
    outputs: list[RequestOutput] = []

    def receive(output: RequestOutput) -> None:
        outputs.append(output)
        is_answering.set()
        may_return.wait(10)

    def close() -> None:
        threading.Thread(target=a.close).start()
        assert is_answering.wait(10)

    before_waking(a, close)
    a.submit(REQUEST, receive)
    may_return.set()
    assert a.has_ended.wait(10)
    assert [one.error for one in outputs] == ["the engine was closed"]
    assert answered(b)[-1].error is None


def test_a_command_that_comes_after_the_end_is_an_error_of_its_caller(thread, monkeypatch):
    a, b = make(thread), make(thread)
    a.call(lambda _: None).result()
    check, outputs = a.check_usable, list[RequestOutput]()

    def check_and_close() -> None:
        check()
        monkeypatch.undo()
        a.close()
        assert a.has_ended.is_set()

    monkeypatch.setattr(a, "check_usable", check_and_close)
    with pytest.raises(UsageError, match="the engine is closed"):
        a.submit(REQUEST, outputs.append)
    assert not a.commands and not outputs
    assert answered(b)[-1].error is None


def test_many_callers_of_an_engine_that_is_closed_are_all_answered(thread):
    for _ in range(10):
        a, b = make(thread), make(thread)
        futures: list[Future[int]] = []
        counts: list[int] = []
        outputs: dict[str, list[RequestOutput]] = {}
        args = (a, futures, counts, outputs)
        callers = [threading.Thread(target=call_until_closed, args=args) for _ in range(3)]
        for caller in callers:
            caller.start()
        time.sleep(0.01)
        a.close()
        for caller in callers:
            caller.join(10)
        assert [one.result(10) for one in futures] == [None] * len(futures)
        assert sorted(counts) == list(range(len(futures)))
        assert all([one.is_end for one in got].count(True) == 1 for got in outputs.values())
        assert answered(b)[-1].error is None


def call_until_closed(
    engine: AsyncEngine,
    futures: list[Future[Any]],
    counts: list[int],
    outputs: dict[str, list[RequestOutput]],
) -> None:
    while True:
        got: list[RequestOutput] = []
        try:
            futures.append(engine.call(lambda _: counts.append(len(counts))))
            outputs[engine.submit(REQUEST, got.append)] = got
        except UsageError:
            return


def test_commands_before_a_failure_are_answered():
    """Their futures were never done."""
    engine, may_fail = make(), threading.Event()

    def fail(_: Any) -> None:
        may_fail.wait(10)
        raise SystemExit("broken")

    outputs: list[RequestOutput] = []
    engine.post(fail)
    future = engine.call(lambda _: "called")
    engine.submit(REQUEST, outputs.append)
    may_fail.set()
    with pytest.raises(EngineError, match="the engine has stopped after SystemExit: broken"):
        future.result(10)
    assert engine.has_ended.wait(10)
    assert [one.error for one in outputs] == ["the engine stopped with SystemExit: broken"]


def test_a_submission_that_ends_the_thread_has_one_last_output():
    engine, outputs = make(), list[RequestOutput]()

    def add(_: Any) -> str:
        raise SystemExit("broken")

    engine.engine.add = add  # type: ignore[method-assign]
    engine.submit(REQUEST, outputs.append)
    assert engine.has_ended.wait(10)
    assert [one.error for one in outputs] == ["the engine stopped with SystemExit: broken"]


def test_an_interrupted_command_is_run_again():
    engine, calls = make(is_threaded=False), []

    def command(owner: AsyncEngine) -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyboardInterrupt

    engine.post(command)
    with pytest.raises(KeyboardInterrupt):
        engine.run_commands()
    assert engine.has_commands
    engine.run_commands()
    assert calls == [0, 1] and not engine.has_commands


def test_a_function_is_never_called_twice():
    engine, calls = make(is_threaded=False), []
    future: Future[None] = Future()
    command = partial(run_into, future=future, function=lambda _: calls.append(1))
    command(engine)
    command(engine)
    assert calls == [1]
    interrupted: Future[None] = Future()
    interrupted.set_running_or_notify_cancel()
    run_into(engine, interrupted, lambda _: calls.append(1))
    with pytest.raises(EngineError, match="the call was interrupted. Repeat it"):
        interrupted.result(0)
    assert calls == [1]


def test_an_engine_that_fails_at_its_end_leaves_the_others():
    thread, (a, b) = simulate(0.01, 0.01)

    def end() -> None:
        raise SystemExit("broken")

    a.end = end  # type: ignore[method-assign]
    a.is_closed = True
    assert thread.run_turn()
    assert isinstance(a.failure, SystemExit) and b.shared == [False]
    b.end = end  # type: ignore[method-assign]
    thread.close()
    assert isinstance(b.failure, SystemExit)


def test_an_engine_is_ended_once():
    thread, (engine,) = simulate(0.01)
    ends: list[SimulatedEngine] = []

    def end() -> None:
        ends.append(engine)
        thread.close()

    engine.end = end  # type: ignore[method-assign]
    thread.close()
    thread.close()
    assert ends == [engine]


def test_a_thread_that_was_closed_is_not_started(thread):
    thread.close()
    thread.start()
    assert thread.thread is None


def test_an_engine_of_a_closed_thread_refuses_requests(thread):
    """They were accepted and never answered."""
    first = make(thread)
    first.call(lambda _: None).result()
    thread.close()
    engine = make(thread)
    assert not engine.is_usable and not engine.is_alive
    for submit in (
        lambda: engine.submit(REQUEST, print),
        lambda: engine.call(lambda _: None),
        lambda: engine.run_units(iter(())),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match="the EngineThread of this engine is closed: .*anoth"):
            submit()


def test_an_engine_of_a_dead_thread_refuses_requests(thread, monkeypatch):
    engine = make(thread)
    engine.call(lambda _: None).result()
    assert thread.thread is not None
    monkeypatch.setattr(thread.thread, "is_alive", lambda: False)
    with pytest.raises(UsageError, match="the EngineThread of this engine is closed"):
        engine.submit(REQUEST, print)


def test_a_second_request_with_the_id_of_an_active_one_is_an_error():
    """It was accepted, and the first one never ended."""
    with make() as engine:
        may_run = threading.Event()
        engine.call(lambda _: may_run.wait(10))
        first, second = list[RequestOutput](), list[RequestOutput]()
        engine.submit(REQUEST, first.append, "x")
        engine.submit(REQUEST, second.append, "x")
        may_run.set()
        wait_until(lambda: first and first[-1].is_end and second)
        assert len(second) == 1 and "the id 'x' is that of a request that has" in second[0].error
        assert first[-1].error is None and sum(len(one.tokens) for one in first) == 3
        third: list[RequestOutput] = []
        engine.submit(REQUEST, third.append, "x")
        wait_until(lambda: third and third[-1].finish)
