"""Long computations in units between the steps of engines: at most one unit between two steps."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

from tests.engine.test_engine_thread import DRAWN, make, simulate
from weft.core.errors import UsageError
from weft.engine.background_units import BackgroundUnits
from weft.engine.engine_thread import EngineThread
from weft.engine.request import GenerationRequest, RequestOutput


def job(log: list[Any], name: str, number: int) -> Generator[None, None, str]:
    try:
        for index in range(number):
            log.append((name, index))
            yield
    finally:
        log.append((name, "closed"))
    return name * 2


def test_jobs_take_turns_and_return_their_values():
    units, log = BackgroundUnits(), list[Any]()
    first, second = units.submit(job(log, "a", 3)), units.submit(job(log, "b", 1))
    while units.run_one():
        pass
    assert log[:3] == [("a", 0), ("b", 0), ("a", 1)]
    assert (first.result(), second.result()) == ("aa", "bb") and not units.has_work


def test_a_cancelled_job_is_closed_and_the_others_continue():
    units, log = BackgroundUnits(), list[Any]()
    first, second = units.submit(job(log, "a", 30)), units.submit(job(log, "b", 2))
    units.run_one()
    assert first.cancel()
    while units.run_one():
        pass
    assert log == [("a", 0), ("b", 0), ("a", "closed"), ("b", 1), ("b", "closed")]
    assert second.result() == "bb"


def test_the_error_of_a_job_is_that_of_its_future():
    def fail() -> Generator[None, None, None]:
        yield
        raise ValueError("no such layer")

    units = BackgroundUnits()
    future = units.submit(fail())
    while units.run_one():
        pass
    with pytest.raises(ValueError, match="no such layer"):
        future.result()


def test_there_is_one_unit_between_two_steps_and_none_waits_for_the_end():
    thread, (a, b) = simulate(0.01, 0.01)
    log: list[Any] = []
    thread.background.submit(job(log, "u", 5))
    thread.background.submit(job(log, "v", 5))
    for number in range(1, 5):
        assert thread.run_turn()
        assert len(a.shared) + len(b.shared) == number == len(log)
    a.num_steps = b.num_steps = 0
    while thread.run_turn():
        pass
    assert len(log) == 12, "the rest runs while there are no steps"


def test_units_run_in_the_engine_thread_and_leave_the_bits_of_requests():
    thread, log = EngineThread(), list[Any]()
    engine = make(thread, 3)
    request = GenerationRequest((5, 9, 30, 7, 8), 20, sampling=DRAWN)
    outputs: list[RequestOutput] = []
    expected: list[RequestOutput] = []
    ended = threading.Event()

    def receive_into(where: list[RequestOutput]) -> Any:
        def receive(output: RequestOutput) -> None:
            where.append(output)
            if output.is_end:
                ended.set()

        return receive

    engine.submit(request, receive_into(expected))
    assert ended.wait(20)
    ended.clear()

    def busy() -> Generator[None, None, int]:
        while not ended.is_set():  # units alone would never end
            log.append(threading.get_ident())
            yield
        return threading.get_ident()

    future = engine.run_units(busy())
    engine.submit(request, receive_into(outputs))
    assert ended.wait(20)
    assert [(one.tokens, one.text) for one in outputs] == [
        (one.tokens, one.text) for one in expected
    ]
    assert {future.result(20)} == set(log) == {engine.thread.ident}
    thread.close()


def test_a_job_of_a_thread_that_is_closed_is_cancelled():
    thread, log = EngineThread(), list[Any]()
    engine = make(thread, 3)
    future = engine.run_units(job(log, "a", 10**9))
    while not log:
        pass
    thread.close()
    assert future.cancelled() and log[-1] == ("a", "closed")
    with pytest.raises(UsageError, match="the engine is closed"):
        engine.run_units(job(log, "a", 1))


def test_without_a_thread_the_caller_runs_all_units():
    engine = make(EngineThread(), 3)
    engine.is_threaded = False
    log: list[Any] = []
    assert engine.run_units(job(log, "a", 3)).result() == "aa" and len(log) == 4
