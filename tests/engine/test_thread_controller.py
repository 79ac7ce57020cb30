"""The number of threads of a step, on simulated machines: how fast each number of threads is, and
when other processes use the CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from tests.engine.tiny import tiny
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.engine.thread_controller import ThreadController
from weft.native.contention import ContentionMeter
from weft.native.library import native, set_num_threads

StepSeconds = Callable[[int, int, float], float]
"""Threads, tokens and time -> seconds of a step."""


@dataclass
class Machine:
    """A clock that each step advances by the time it takes with its threads."""

    step_seconds: StepSeconds
    is_busy: Callable[[float], bool]
    time: float = 0.0
    delay_ns: int = 0
    threads: int = 0
    used: list[int] = field(default_factory=list)
    controller: ThreadController = field(init=False)

    def __post_init__(self) -> None:
        meter = ContentionMeter(lambda: self.delay_ns, lambda: self.time, lambda is_on: None)
        self.controller = ThreadController(lambda: self.time, meter, self.set)

    def set(self, count: int) -> None:
        self.threads = count

    def step(self, num_tokens: int = 1) -> None:
        self.threads = torch.get_num_threads()
        with self.controller.step(num_tokens):
            self.used.append(self.threads)
            seconds = self.step_seconds(self.threads, num_tokens, self.time)
            self.delay_ns += int(seconds * 1e9 * 0.5) if self.is_busy(self.time) else 0
            self.time += seconds
        assert self.threads == torch.get_num_threads()

    def run(self, seconds: float, num_tokens: int = 1) -> list[int]:
        """Steps until the time has passed; the threads of each."""
        end, first = self.time + seconds, len(self.used)
        while self.time < end:
            self.step(num_tokens)
        return self.used[first:]


def rate(machine: Machine, seconds: float) -> float:
    begin = machine.time
    return len(machine.run(seconds)) / (machine.time - begin)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 2)


def use(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    monkeypatch.delenv("WEFT_WAIT", raising=False)


IDLE = {1: 0.010, 2: 0.007}


def always(value: bool) -> Callable[[float], bool]:
    return lambda time: value


@pytest.mark.usefixtures("two_threads")
def test_an_idle_machine_uses_all_threads_and_tries_nothing() -> None:
    machine = Machine(lambda threads, tokens, time: IDLE[threads], always(False))
    assert set(machine.run(30)) == {2}


@pytest.mark.usefixtures("two_threads")
def test_a_single_slow_step_changes_nothing() -> None:
    """A garbage collection, even one that delays a thread a little."""

    def seconds(threads: int, tokens: int, time: float) -> float:
        return 0.5 if 5 < time < 5.01 else IDLE[threads]

    machine = Machine(seconds, always(False))
    assert set(machine.run(20)) == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("slow", [1.5, 3.0, 10.0, 100.0])
def test_beside_other_processes_the_faster_number_is_used(slow: float) -> None:
    """Two threads take `slow` times as long as one. At most 5 % is lost by measuring them again."""
    busy = {1: 0.015, 2: 0.015 * slow}
    machine = Machine(lambda threads, tokens, time: busy[threads], always(True))
    machine.run(2)
    assert rate(machine, 60) >= 0.95 / busy[1]


@pytest.mark.usefixtures("two_threads")
def test_two_threads_are_kept_if_they_are_faster_beside_other_processes() -> None:
    busy = {1: 0.030, 2: 0.018}
    machine = Machine(lambda threads, tokens, time: busy[threads], always(True))
    machine.run(2)
    assert rate(machine, 60) >= 0.95 / busy[2]


@pytest.mark.usefixtures("two_threads")
def test_neighbors_that_come_and_go_are_noticed() -> None:
    def is_busy(time: float) -> bool:
        return 10 < time < 30

    def seconds(threads: int, tokens: int, time: float) -> float:
        return {1: 0.015, 2: 0.2}[threads] if is_busy(time) else IDLE[threads]

    machine = Machine(seconds, is_busy)
    assert set(machine.run(10 - machine.time)) == {2}
    machine.run(11 - machine.time)
    assert rate(machine, 30 - machine.time) >= 0.93 / 0.015
    machine.run(32 - machine.time)
    assert rate(machine, 20) >= 0.99 / IDLE[2]


@pytest.mark.usefixtures("two_threads")
def test_one_neighbor_leaves_no_trace_while_one_thread_runs() -> None:
    """With one thread and one neighbor on two CPUs nothing waits, so there is no signal: two
    threads are tried again from time to time, at a bounded cost, and used once it has left."""
    seconds = {1: 0.010, 2: 0.017}

    def step(threads: int, tokens: int, time: float) -> float:
        return IDLE[threads] if time > 60 else seconds[threads]

    machine = Machine(step, lambda time: time < 60 and machine.threads == 2)
    machine.run(2)
    assert rate(machine, 55) >= 0.95 / seconds[1]
    machine.run(64 - machine.time)
    assert rate(machine, 10) >= 0.98 / IDLE[2]


def test_sixteen_threads_are_reduced_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 16)
    busy = {16: 0.05, 8: 0.01, 4: 0.014, 2: 0.02, 1: 0.04}
    machine = Machine(lambda threads, tokens, time: busy[threads], always(True))
    used = machine.run(10)
    assert used[0] == 16 and used.index(8) < 5 and used.count(8) > 0.8 * len(used)


@pytest.mark.usefixtures("two_threads")
def test_sizes_are_judged_separately() -> None:
    """A long prompt is worth two threads where a decode step is not."""

    def seconds(threads: int, tokens: int, time: float) -> float:
        if tokens == 1:
            return {1: 0.015, 2: 0.1}[threads]
        return {1: 0.9, 2: 0.5}[threads]

    machine = Machine(seconds, always(True))
    for _ in range(40):
        machine.step(512)
        machine.run(0.3, 1)
    prompts, decodes = [], []
    for _ in range(40):
        machine.step(512)
        prompts.append(machine.used[-1])
        decodes += machine.run(0.3, 1)
    assert prompts.count(2) > 30 and decodes.count(1) > 0.9 * len(decodes)


@pytest.mark.parametrize(("policy", "threads"), [("spin", 2), ("passive", 2), ("adaptive", 1)])
def test_other_policies_and_one_thread_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, policy: str, threads: int
) -> None:
    use(monkeypatch, threads)
    monkeypatch.setenv("WEFT_WAIT", policy)
    machine = Machine(lambda threads, tokens, time: 0.1 * threads, always(True))
    assert set(machine.run(5)) == {threads}


@pytest.mark.usefixtures("two_threads")
def test_a_step_that_fails_is_not_counted_and_the_threads_are_restored() -> None:
    machine = Machine(lambda threads, tokens, time: 0.015 * threads**3, always(True))
    machine.run(1)
    assert machine.used[-1] == 1
    before = [
        one.seconds for size in machine.controller.sizes.values() for one in size.times.values()
    ]
    with pytest.raises(KeyboardInterrupt), machine.controller.step(1):
        machine.time += 100
        raise KeyboardInterrupt
    assert machine.threads == 2
    after = [
        one.seconds for size in machine.controller.sizes.values() for one in size.times.values()
    ]
    assert after == before


@pytest.mark.skipif(native() is None, reason="needs the compiled kernels")
def test_the_library_and_torch_share_one_openmp() -> None:
    """Otherwise there would be two thread pools, and torch would not see the number."""
    before = torch.get_num_threads()
    try:
        set_num_threads(before + 2)
        assert torch.get_num_threads() == before + 2
    finally:
        set_num_threads(before)
    assert torch.get_num_threads() == before


def test_an_engine_restores_the_threads_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_WAIT", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine = Engine(tiny("decoder").model)
        chosen: list[int] = []
        engine.threads.set_threads = lambda count: (chosen.append(count), set_num_threads(count))[1]
        # other processes use the CPUs all the time
        engine.threads.meter = ContentionMeter(lambda: 0, throttle=lambda is_on: None)
        engine.threads.meter.is_contended = True
        engine.threads.meter.update = lambda: None  # type: ignore[method-assign]
        engine.submit(GenerationRequest((5, 6, 7), max_tokens=30))
        while not engine.is_idle:
            engine.step()
            assert torch.get_num_threads() == 2
        assert chosen[:2] == [1, 2], "one thread was tried"
    finally:
        torch.set_num_threads(before)
