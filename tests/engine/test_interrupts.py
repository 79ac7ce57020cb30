"""SIGINT during a step takes effect after the current forward pass or at the end, and loses
nothing."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from tests.engine.line_faults import SCENARIOS, FaultRun, check_engine
from weft.engine.interrupts import DeferredInterrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def run_interrupted(name: str, target: Any, method: str, patch: pytest.MonkeyPatch) -> list[Any]:
    """Results of a run in which SIGINT arrives in the second call of a method; events in order."""
    run, calls, events = FaultRun(SCENARIOS[name]), [0], list[str]()
    target = target(run.engine)
    real = getattr(target, method)

    def interrupted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            interrupt()
            events.append("signal")
        result = real(*args)
        events.append("done") if calls[0] == 2 else None
        return result

    def step() -> Any:
        try:
            return run.engine.step()
        except KeyboardInterrupt:
            events.append("interrupt")
            return []
        finally:
            check_engine(run.engine)

    patch.setattr(target, method, interrupted)
    results = run.run(step)
    assert results == FaultRun(SCENARIOS[name]).run_undisturbed()
    return events


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(
    ("target", "method"),
    [
        (lambda engine: engine.scheduler, "schedule"),
        (lambda engine: engine.runner, "forward"),
        (lambda engine: engine.scheduler, "commit"),
    ],
    ids=["schedule", "forward", "commit"],
)
def test_an_interrupt_waits_for_the_current_call(name, target, method, monkeypatch):
    events = run_interrupted(name, target, method, monkeypatch)
    assert events == ["signal", "done", "interrupt"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_multi_step_plan_after_the_current_forward_pass(monkeypatch):
    run, passes = FaultRun(SCENARIOS["multi-step"]), []
    real = run.engine.runner.next_logits

    def next_logits(*args: Any) -> Any:
        passes.append(args)
        interrupt()
        return real(*args)

    run.submit(0)
    run.engine.step()
    monkeypatch.setattr(run.engine.runner, "next_logits", next_logits)
    with pytest.raises(KeyboardInterrupt):
        run.engine.step()
    assert len(passes) == 1


def test_a_handler_that_does_not_raise_is_called_once_and_the_step_goes_on(monkeypatch):
    called = []
    before = signal.signal(signal.SIGINT, lambda *args: called.append(args))
    try:
        run = FaultRun(SCENARIOS["decode"])
        run.submit(0)
        real = run.engine.runner.forward
        monkeypatch.setattr(
            run.engine.runner, "forward", lambda batch: (interrupt(), real(batch))[1]
        )
        assert run.engine.step() is not None
        assert len(called) == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_and_ignored_signals_are_left_alone():
    interrupts, found = DeferredInterrupts(), []

    def enter() -> None:
        with interrupts:
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        enter()
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [before, signal.SIG_IGN]


def test_an_interrupt_after_an_exit_that_was_interrupted_is_not_swallowed():
    interrupts = DeferredInterrupts()
    interrupts.__enter__()
    interrupts.is_active = False  # what `__exit__` does first; then an exception
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with interrupts:
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
