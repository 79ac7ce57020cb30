"""The watchdog: a slow step is reported, a stuck or dead engine ends the process. Clocks are set,
except for one real server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from itertools import count
from queue import SimpleQueue

import httpx
import pytest

from tests.engine.tiny import tiny, tiny_folder
from tests.serve.process import ServeProcess
from tests.serve.server import make_service
from tests.serve.test_disconnects import wait_until
from weft.engine.background_units import Units
from weft.engine.engine import Engine
from weft.engine.request import RequestOutput
from weft.serve.served_model import ServedModel
from weft.serve.watchdog import END_SECONDS, Watchdog, predicted_seconds, stack_of


class Fixture:
    """A watchdog with a clock that tests set."""

    def __init__(self) -> None:
        self.time, self.slept, self.codes = 1000.0, list[float](), list[int]()
        self.service = make_service()
        self.served: ServedModel = self.service.models.get("decoder")
        self.dog = Watchdog(self.service, lambda: self.time, self.slept.append, self.codes.append)

    def in_step_for(self, seconds: float) -> bool:
        """Whether the process has to end, after so many seconds with regular checks."""
        begin = self.time
        self.served.engine.step_began_at = begin
        return watch(self, begin, seconds)


def watch(fixture: Fixture, begin: float, seconds: float) -> bool:
    """Check regularly until so long after `begin`."""
    while fixture.time < begin + seconds:
        if fixture.dog.check():
            return True
        fixture.time = min(fixture.time + 5.0, begin + seconds)
    return fixture.dog.check()


@pytest.fixture
def watched() -> Iterator[Fixture]:
    one = Fixture()
    yield one
    one.served.engine.step_began_at = None
    one.service.models.close()


def test_a_long_step_is_reported_once_with_the_stack(watched, caplog):
    watched.served.loaded.generate("the cat", 2)  # starts the thread
    with caplog.at_level(logging.WARNING):
        assert not watched.in_step_for(59)
        assert not caplog.records
        assert not watched.in_step_for(61)
        began = watched.served.engine.step_began_at
        watched.time += 5
        watched.served.engine.step_began_at = began
        assert not watched.dog.check()
    (message,) = caplog.messages
    assert "model=decoder step_seconds=60 state=slow" in message and "wakeups.get()" in message
    assert watched.codes == [] and watched.service.problem is None


def test_a_stuck_engine_ends_its_requests_and_the_process(watched, caplog):
    outputs: list[RequestOutput] = []
    watched.served.engine.receivers["r1"] = outputs.append
    assert not watched.in_step_for(300)
    assert watched.in_step_for(301)
    assert watched.codes == [1] and watched.slept == [END_SECONDS]
    assert watched.time == 1000 + 300 + 301
    assert watched.service.problem == "the engine of model 'decoder' is stuck in a step for 301 s"
    assert outputs[0].error == watched.service.problem
    assert "state=failed" in caplog.text


@pytest.mark.parametrize("is_stuck", [True, False])
def test_the_requests_of_other_models_end_as_well(is_stuck):
    """A stuck thread steps no other engine; the thread of an engine that failed does."""
    codes: list[int] = []
    service = make_service({"first": tiny("decoder"), "second": tiny("decoder", seed=4)})
    clock = count(700.0)
    dog = Watchdog(service, lambda: next(clock), lambda seconds: None, codes.append)
    first, second = (service.models.get(name).engine for name in ("first", "second"))
    outputs: SimpleQueue[RequestOutput] = SimpleQueue()
    second.receivers["r1"] = outputs.put
    if is_stuck:
        first.step_began_at = 699.0
    else:
        first.failure = RuntimeError("broken")
    assert any(dog.check() for _ in range(310)) and codes == [1]
    if is_stuck:
        assert not outputs.empty()
    assert outputs.get(timeout=20).error == service.problem
    first.step_began_at = None
    service.models.close()


def test_a_pause_of_the_process_is_not_a_stuck_step(watched):
    """As by SIGSTOP: the clock goes on, and the first check may come before the step continues."""
    begin = watched.served.engine.step_began_at = watched.time
    assert not watch(watched, begin, 5)
    watched.time += 3600
    assert not watched.dog.check() and watched.codes == []
    assert not watch(watched, watched.time, 250)
    assert watch(watched, watched.time, 100), "it is stuck after all"


def test_a_command_that_hangs_is_stuck(watched):
    go, has_begun = threading.Event(), threading.Event()

    def hang(engine: Engine) -> None:
        has_begun.set()
        go.wait(20)

    engine = watched.served.engine
    engine.now = lambda: watched.time
    future = engine.call(hang)
    assert has_begun.wait(20)
    begin, is_stuck = watched.time, watch(watched, watched.time, 301)
    go.set()
    future.result(20)
    assert is_stuck and watched.codes == [1] and watched.time <= begin + 301
    wait_until(lambda: engine.busy_since is None)


def test_a_background_unit_that_hangs_is_stuck(watched, monkeypatch):
    go, has_begun = threading.Event(), threading.Event()

    def hang() -> Units[int]:
        has_begun.set()
        go.wait(20)
        yield
        return 7

    monkeypatch.setattr("weft.engine.engine_thread.time.monotonic", lambda: watched.time)
    future = watched.served.engine.run_units(hang())
    assert has_begun.wait(20)
    is_stuck = watch(watched, watched.time, 301)
    go.set()
    assert future.result(20) == 7 and is_stuck and watched.codes == [1]


def test_a_step_that_is_predicted_to_be_long_is_not_stuck(watched):
    assert predicted_seconds(watched.served) == 0.0
    rates = watched.served.engine.engine.scheduler.state.step_times
    rates.prefill.add(1.0, 0.05)  # 20 tokens per second: 2048 take 102 s
    assert predicted_seconds(watched.served) == pytest.approx(2048 / 20)
    assert not watched.in_step_for(2000)
    assert watched.in_step_for(2049)


def test_a_dead_engine_ends_the_process(watched):
    assert not watched.dog.check()
    watched.served.engine.failure = RuntimeError("broken")
    watched.dog.run()
    assert watched.codes == [1]
    assert watched.service.problem == "the engine of model 'decoder' has stopped"


def test_a_server_that_closes_its_engines_is_left_alone(watched):
    watched.dog.stop()
    watched.served.engine.is_closed = True
    watched.dog.run()
    assert not watched.dog.check() and watched.codes == []


def test_a_thread_that_never_ran_has_no_stack():
    assert stack_of(None) == "(no thread)"


FAULTY = """
import sys
from pathlib import Path
from weft.cli import main
from weft.engine.async_engine import AsyncEngine

run_step = AsyncEngine.run_step

def run_step_or_end(self, is_shared=False):
    if Path({flag!r}).exists():
        raise SystemExit("injected")
    run_step(self, is_shared)

AsyncEngine.run_step = run_step_or_end
sys.exit(main())
"""
"""A server whose engine stops when a file appears."""


def test_a_real_server_whose_engine_dies_says_so_and_exits_with_1(tmp_path):
    folder, flag = tiny_folder(tmp_path / "model", "decoder", max_len=4000), tmp_path / "flag"
    program = ("-c", FAULTY.format(flag=str(flag)))
    body = {"model": "model", "prompt": "the cat", "max_tokens": 3900, "ignore_eos": True}
    with ServeProcess(folder, "--cache", "0.05", program=program) as server:
        server.wait_ready()
        assert server.client.get("/health").status_code == 200
        with server.client.stream(
            "POST", "/v1/completions", json={**body, "stream": True}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            flag.touch()
            rest = list(lines)
        assert any('"error":{"message":' in line for line in rest)
        assert 503 in health_until_exit(server)
        assert server.exit_code() == 1
        assert any("the engine of model 'model' has stopped" in line for line in server.lines)


def health_until_exit(server: ServeProcess) -> set[int]:
    """The statuses of /health as long as there is a server."""
    statuses, end = set[int](), time.monotonic() + 60
    while time.monotonic() < end:
        try:
            statuses.add(server.client.get("/health").status_code)
        except httpx.TransportError:
            break
        time.sleep(0.02)
    return statuses
