"""`Watchdog`: a thread that ends the process if an engine is stuck or dead.

    step longer than 60 s            a warning with the stack of the engine thread, once per step
    longer than 300 s and 20 times   /health is 503, running requests end with an error event, and
    the predicted time, or dead      the process exits with 1, so that a service manager restarts it

Commands (such as saving a cache) and background units (such as the rows of /v1/attention) count as
steps. Only time in which the watchdog itself ran counts, so that a pause of the whole process
(SIGSTOP) is not mistaken for a stuck step. A kernel cannot be interrupted from within the process,
so ending it is the only remedy. The predicted time is that of a step with the maximum number of
tokens, at the measured rates.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.engine.async_engine import AsyncEngine
from weft.serve.context import Service
from weft.serve.served_model import ServedModel

log = logging.getLogger(__name__)

WARN_SECONDS = 60.0
STUCK_SECONDS = 300.0
STUCK_FACTOR = 20.0
CHECK_SECONDS = 1.0
MAX_GAP_SECONDS = 10.0
"""Maximum time between two checks that counts, as a busy or paused machine delays them."""
END_SECONDS = 2.0
"""Time for error events to be sent before the process exits."""


def exit_now(code: int) -> None:
    """End the process without waiting for threads, which are stuck."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class Watchdog:
    """Watches the engines of one service. Clock, sleep and exit are passed in by tests."""

    service: Service
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    exit: Callable[[int], None] = exit_now
    warned_steps: dict[str, float] = field(default_factory=dict)
    """Start of the last step that was reported, by model."""
    is_stopped: bool = False
    checked_at: float | None = None
    """Time of the last check."""
    observed: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By model, the beginning of its step and the seconds of it in which the watchdog ran."""

    def start(self) -> None:
        threading.Thread(target=self.run, name="weft-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; call it before engines are closed."""
        self.is_stopped = True

    def run(self) -> None:
        while not self.is_stopped:
            if self.check():
                return
            self.sleep(CHECK_SECONDS)

    def check(self) -> bool:
        """Check all engines once. Returns True after `give_up`, which ends the process except in
        tests."""
        now = self.now()
        gap = 0.0 if self.checked_at is None else min(now - self.checked_at, MAX_GAP_SECONDS)
        self.checked_at = now
        for served in list(self.service.models.models.values()):
            self.observe(served, now, gap)
            problem = self.problem_with(served)
            if problem is not None and not self.is_stopped:
                self.give_up(served, problem)
                return True
        return False

    def observe(self, served: ServedModel, now: float, gap: float) -> None:
        """Add the time since the last check to the running step."""
        began = served.engine.busy_since
        if began is None:
            self.observed.pop(served.name, None)
            return
        last_began, seconds = self.observed.get(served.name, (began, 0.0))
        if last_began != began:
            seconds = 0.0
        self.observed[served.name] = (began, seconds + max(0.0, min(gap, now - began)))

    def problem_with(self, served: ServedModel) -> str | None:
        """Why an engine is dead or stuck; None: it is neither. Logs long steps."""
        engine = served.engine
        if not engine.is_alive:
            return f"the engine of model '{served.name}' has stopped"
        began, observed = self.observed.get(served.name, (None, 0.0))
        seconds = 0.0 if began is None else self.now() - began
        if began is None or seconds < WARN_SECONDS:
            return None
        if self.warned_steps.get(served.name) != began:
            self.warned_steps[served.name] = began
            log.warning(
                "model=%s step_seconds=%.0f state=slow stack:\n%s",
                *(served.name, seconds, stack_of(engine.thread)),
            )
        if observed > max(STUCK_SECONDS, STUCK_FACTOR * predicted_seconds(served)):
            return f"the engine of model '{served.name}' is stuck in a step for {seconds:.0f} s"
        return None

    def give_up(self, served: ServedModel, problem: str) -> None:
        """End the requests and the process."""
        log.critical(
            "model=%s state=failed problem=%r stack:\n%s",
            *(served.name, problem, stack_of(served.engine.thread)),
        )
        self.service.fatal = problem
        for engine in self.stopped_engines(served):
            # the engine thread does not run it: nothing else touches the receivers
            engine.end_requests(problem)
        self.service.end_requests(problem)  # those of engines that run
        self.sleep(END_SECONDS)
        self.exit(1)

    def stopped_engines(self, served: ServedModel) -> list[AsyncEngine]:
        """The engine that has failed, or all engines of the stuck thread."""
        if served.engine.busy_since is None:
            return [served.engine]
        engines = [one.engine for one in list(self.service.models.models.values())]
        return [one for one in engines if one.engine_thread is served.engine.engine_thread]


def predicted_seconds(served: ServedModel) -> float:
    """Time of the longest step that the scheduler plans, at the measured rates; 0.0 before any was
    measured."""
    load, config = served.engine.engine.scheduler.load(), served.loaded.engine_config
    prefill = config.token_budget / load.prefill_rate if load.prefill_rate else 0.0
    decode = config.max_running * config.num_steps / load.decode_rate if load.decode_rate else 0.0
    return prefill + decode


def stack_of(thread: threading.Thread | None) -> str:
    """The stack of a thread, as text."""
    frame = None if thread is None else sys._current_frames().get(thread.ident or -1)
    return "(no thread)" if frame is None else "".join(traceback.format_stack(frame))
