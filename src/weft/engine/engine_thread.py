"""`EngineThread`: one thread that steps any number of engines in turns.

    thread = EngineThread()
    a, b = AsyncEngine(engine_a, thread=thread), AsyncEngine(engine_b, thread=thread)
    ...
    thread.close()

One thread for all models of a process: libgomp creates a team of threads for every thread that runs
kernels, and two teams compete for the same cores. Engines that have work get equal shares of the
wall time (turns.py); while several have work, their steps are kept short (latency_budget.py).
Before each step the thread runs the commands of all engines, and one background unit
(background_units.py) if there is any.

The thread starts at first use. While it is idle, it holds only weak references, so an engine or an
EngineThread that is dropped without `close` is garbage collected. An engine that fails is removed,
and the others continue; an exception outside of an engine ends the thread and all of its engines.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from weft.engine.background_units import BackgroundUnits
from weft.engine.turns import TimeShare, Turns

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Seconds that `close` waits for the current step."""


class SteppedEngine(Protocol):
    """The interface of an engine that the thread uses; all methods are called in the thread."""

    is_closed: bool

    @property
    def has_commands(self) -> bool: ...

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute or deliver."""

    def run_commands(self) -> None: ...

    def run_step(self, is_shared: bool) -> None:
        """One step; `is_shared`: another engine has work as well."""

    def fail(self, error: BaseException) -> None:
        """Called after an exception: the thread will not step this engine again."""

    def end(self) -> None:
        """Called after the engine was closed: the thread will not step it again."""


@dataclass(eq=False)
class Member:
    """An engine of the thread."""

    ref: weakref.ref[SteppedEngine]
    share: TimeShare = field(default_factory=TimeShare)


class EngineThread:
    """The thread and its engines. `add` and `close` may be called in any thread."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now, self.turns = now, Turns()
        self.background = BackgroundUnits()
        self.unit_began_at: float | None = None
        """Start time of the running background unit, by time.monotonic; None: none runs."""
        self.members: list[Member] = []
        """Replaced as a whole, never changed: the thread iterates over it."""
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        """One item per command. `put` may be called from any thread and from finalizers."""
        self.is_closed = False
        self.pid = os.getpid()
        self.thread: threading.Thread | None = None
        self.lock = threading.RLock()  # a signal handler may close it at any line
        OPEN.add(self)
        weakref.finalize(self, self.wakeups.put, None).atexit = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "not started" if self.thread is None else "running"
        return f"EngineThread({len(self.members)} engines, {state})"

    def add(self, engine: SteppedEngine) -> None:
        """Step an engine from now on, until it is closed, fails or is dropped."""
        with self.lock:
            self.members = [*self.members, Member(weakref.ref(engine))]

    def remove(self, member: Member) -> bool:
        """Returns whether it was a member until now: who removes an engine ends it."""
        with self.lock:
            before, self.members = self.members, [one for one in self.members if one is not member]
            return len(self.members) < len(before)

    def wake(self) -> None:
        """Wake the thread to check for commands and work."""
        self.wakeups.put(None)

    def start(self) -> None:
        """Start the thread unless it was started before, or closed."""
        with self.lock:
            if self.thread is None and not self.is_closed:
                thread = threading.Thread(
                    target=run_thread,
                    args=(self.wakeups, weakref.ref(self)),
                    name="weft-engine",
                    daemon=True,  # `close_all` ends it at exit
                )
                thread.start()
                self.thread = thread  # once it runs: `is_alive` may be asked at any time

    @property
    def is_alive(self) -> bool:
        """Whether engines can be stepped: the thread runs, or has not been started yet."""
        is_dead = self.thread is not None and not self.thread.is_alive()
        return not self.is_closed and not is_dead

    @property
    def can_wait(self) -> bool:
        """Whether the thread runs and is not the calling thread, so that it can be waited for."""
        thread = self.thread
        is_other = thread is not None and thread is not threading.current_thread()
        return is_other and os.getpid() == self.pid

    def run_until_idle(self) -> None:
        """Thread: run turns until no engine has work."""
        while not self.is_closed and self.run_turn():
            pass

    def run_turn(self) -> bool:
        """Thread: run the commands of all engines, one background unit, then one step of one
        engine. Returns False if there was nothing to do."""
        busy = {
            member.share: (member, engine)
            for member, engine in self.engines()
            if self.prepare(member, engine)
        }
        has_run_unit = self.background.has_work and self.run_unit()
        if not busy:
            return has_run_unit
        member, engine = busy[self.turns.choose([*busy])]
        self.run_timed(member, engine, lambda: engine.run_step(len(busy) > 1))
        return True

    def run_unit(self) -> bool:
        """Thread: run one background unit. Returns False if there was none."""
        self.unit_began_at = time.monotonic()
        try:
            return self.background.run_one()
        finally:
            self.unit_began_at = None

    def engines(self) -> Iterator[tuple[Member, SteppedEngine]]:
        """The engines that still exist; removes those that were garbage collected."""
        for member in self.members:
            engine = member.ref()
            if engine is None:
                self.remove(member)
            else:
                yield member, engine

    def prepare(self, member: Member, engine: SteppedEngine) -> bool:
        """Run the commands of an engine; returns whether it has work afterwards."""
        if engine.is_closed:
            self.end_engine(member, engine)
            return False
        if engine.has_commands and not self.run_timed(member, engine, engine.run_commands):
            return False
        return engine.has_work

    def run_timed(
        self, member: Member, engine: SteppedEngine, function: Callable[[], None]
    ) -> bool:
        """Call a function of an engine and add its duration to the engine's share. Returns False if
        it raised."""
        begin = self.now()
        try:
            function()
            return True
        except BaseException as error:
            self.fail_engine(member, engine, error)
            return False
        finally:
            self.turns.charge(member.share, self.now() - begin)

    def end_engine(self, member: Member, engine: SteppedEngine) -> None:
        """End an engine that was closed, unless another thread does."""
        if self.remove(member):
            try:
                engine.end()
            except BaseException as error:
                self.fail_engine(member, engine, error)

    def fail_engine(self, member: Member, engine: SteppedEngine, error: BaseException) -> None:
        """Thread: remove an engine after its exception."""
        self.remove(member)
        try:
            engine.fail(error)
        except BaseException:  # the other engines continue
            log.critical("engine=stopped state=lost", exc_info=True)

    def end(self) -> None:
        """Thread: close all engines, because the thread was closed."""
        self.background.cancel_all()
        for member, engine in self.engines():
            engine.is_closed = True
            self.end_engine(member, engine)

    def fail(self, error: BaseException) -> None:
        """Thread: stop all engines, because of an exception outside of them."""
        self.is_closed = True
        self.background.cancel_all()
        for member, engine in self.engines():
            self.fail_engine(member, engine, error)

    def close(self) -> None:
        """End the thread after the current step. Running requests end with an error."""
        if os.getpid() != self.pid:  # a fork: another thread may have held the lock
            self.is_closed = True
            return
        with self.lock:  # from here on it is not started
            self.is_closed = True
        self.wake()
        if self.thread is None:
            self.end()
        elif self.can_wait:
            self.thread.join(CLOSE_SECONDS)


OPEN: weakref.WeakSet[EngineThread] = weakref.WeakSet()
"""Closed at interpreter exit: no thread may be inside a kernel then."""


@atexit.register
def close_all() -> None:
    for thread in list(OPEN):
        thread.close()


def run_thread(wakeups: SimpleQueue[None], ref: weakref.ref[EngineThread]) -> None:
    """Main function of the thread."""
    while True:
        wakeups.get()
        owner = ref()
        if owner is None:
            return
        try:
            owner.run_until_idle()
            if owner.is_closed:
                owner.end()
                return
        except BaseException as error:
            log.critical("thread=stopped", exc_info=error)
            owner.fail(error)
            return
        del owner  # while it waits, nothing keeps the engines
