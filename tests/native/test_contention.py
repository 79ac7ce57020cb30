"""Contention is measured from waiting times, and decides how threads wait at barriers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.native import contention as module
from weft.native.contention import RECHECK_SECONDS, ContentionMeter, run_delay_ns
from weft.native.library import native, set_throttled


class FakeMachine:
    """A clock, the waiting time per second, and the calls of the switch."""

    def __init__(self) -> None:
        self.time, self.delay, self.switched = 0.0, 0.0, list[tuple[float, bool]]()
        self.meter = ContentionMeter(lambda: int(self.delay * 1e9), lambda: self.time, self.switch)

    def switch(self, is_on: bool) -> None:
        self.switched.append((round(self.time, 2), is_on))

    def run(self, seconds: float, waiting: float, step: float = 0.01) -> None:
        for _ in range(round(seconds / step)):
            self.time += step
            self.delay += step * waiting
            self.meter.update()


def test_threads_sleep_while_there_is_contention() -> None:
    machine = FakeMachine()
    machine.run(2, 0.05)
    assert machine.switched == [] and not machine.meter.is_contended
    machine.run(3, 0.9)
    assert machine.meter.is_contended
    machine.run(3, 0.0)
    assert not machine.meter.is_contended and machine.meter.num_quiet == 1
    (begin, is_on), (end, is_still_on) = machine.switched
    assert is_on and not is_still_on
    assert 2.0 < begin <= 2.2 and 6.0 <= end <= 6.3


def test_a_server_and_its_client_are_no_contention() -> None:
    """They cause some waiting; but less is needed to continue than to begin."""
    machine = FakeMachine()
    machine.run(2, 0.3)
    assert machine.switched == [] and not machine.meter.is_contended
    machine.run(1, 0.9)
    machine.run(3, 0.3)
    assert machine.meter.is_contended and [is_on for _, is_on in machine.switched] == [True]


def test_a_short_pause_is_no_end_of_contention() -> None:
    machine = FakeMachine()
    for _ in range(5):
        machine.run(0.5, 0.9)
        machine.run(0.5, 0.0)
    assert [is_on for _, is_on in machine.switched] == [True] and machine.meter.num_quiet == 0


def test_waiting_that_wakeups_cause_does_not_keep_threads_asleep() -> None:
    """Above the limit only while the threads sleep: checked without it after RECHECK_SECONDS."""
    machine = FakeMachine()
    machine.run(1, 0.9)
    while machine.time < 3 * RECHECK_SECONDS:
        machine.run(0.1, 0.3 if machine.switched[-1][1] else 0.0)
    (_, is_on), (end, is_still_on) = machine.switched
    assert is_on and not is_still_on and end < RECHECK_SECONDS + 1


def test_contention_that_lasts_is_checked_now_and_then() -> None:
    machine = FakeMachine()
    machine.run(5 * RECHECK_SECONDS, 0.9)
    spinning = sum(1 for _, is_on in machine.switched if not is_on)
    assert 4 <= spinning <= 5 and machine.meter.num_quiet == 0
    on = [time for time, is_on in machine.switched if is_on]
    off = [time for time, is_on in machine.switched if not is_on]
    assert all(again - end <= 0.12 for end, again in zip(off, on[1:], strict=False))


def test_long_steps_are_judged_at_their_end() -> None:
    machine = FakeMachine()
    machine.run(6, 0.9, step=3.0)
    assert machine.switched == [(3.0, True)]


def test_threads_that_end_leave_no_negative_time() -> None:
    machine = FakeMachine()
    machine.run(1, 0.9)
    machine.delay = 0.0
    machine.run(0.5, 0.0)
    assert not machine.meter.is_contended


def test_the_waiting_time_of_this_process_is_reported() -> None:
    first = run_delay_ns()
    assert 0 <= first <= run_delay_ns()


def test_without_schedstat_context_switches_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "TASKS", tmp_path / "none")
    assert run_delay_ns() % module.SWITCH_DELAY_NS == 0
    (tmp_path / "task/7").mkdir(parents=True)
    (tmp_path / "task/7/schedstat").write_text("500 300 2\n")
    (tmp_path / "task/8").mkdir()  # a thread that has just ended
    monkeypatch.setattr(module, "TASKS", tmp_path / "task")
    assert run_delay_ns() == 300


COUNT = """
import os, time, torch
from weft.native.library import set_throttled
torch.set_num_threads(2)
torch.ones(2000, 2000).sum()
def threads(): return len(os.listdir("/proc/self/task"))
def settled(expected):
    deadline = time.monotonic() + 60
    while threads() != expected and time.monotonic() < deadline: time.sleep(0.01)
    return threads()
before = threads()
set_throttled(True); set_throttled(True)
on = settled(before + 1 + len(os.sched_getaffinity(0)))
x = torch.ones(2000, 2000).sum().item()
set_throttled(False); set_throttled(False)
off = settled(before)
set_throttled(True)
print(on - before, off - before, x)
"""


@pytest.mark.skipif(native() is None, reason="needs the compiled kernels")
def test_the_switch_holds_a_team_of_sleeping_threads() -> None:
    """More managed threads than CPUs: that is when libgomp spins less. The process ends with it."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == f"{1 + len(os.sched_getaffinity(0))} 0 4000000.0\n"
    set_throttled(False)
