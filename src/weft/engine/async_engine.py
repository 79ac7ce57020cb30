"""`AsyncEngine`: an engine that runs in a thread. Any thread or event loop submits requests.

    engine = AsyncEngine(Engine(model, tokenizer))
    async for output in engine.stream(request): ...             # asyncio
    engine.submit(request, queue.put)                           # threads: called with each output
    engine.call(lambda engine: engine.statistics()).result()    # runs between two steps
    engine.close()

Only the engine thread (engine_thread.py) accesses the engine and runs kernels. It belongs to this
engine alone, or is passed in and shared with other engines. Other threads put commands (submit,
abort, call) into a queue, which the engine thread reads between two steps. Requests are checked and
their grammars compiled in the calling thread (`Engine.prepare`).

The thread starts at first use. While the engine is idle, the thread holds only a weak reference to
it, so an engine that is dropped without `close` is garbage collected. Outputs for one event loop
are delivered with one wakeup per step. Differs from vLLM's AsyncLLM, whose engine is a separate
process: outputs are passed without serialization, and the kernels release the GIL.

`is_threaded=False`: no thread; a caller that waits for an output runs the steps (`EngineClient`).
For evaluation during training, which uses the weights of the training thread, and for tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from weft.core.errors import EngineError, UsageError
from weft.engine.background_units import Units, run_all
from weft.engine.engine import Engine
from weft.engine.engine_state import PreparedRequest
from weft.engine.engine_thread import CLOSE_SECONDS, EngineThread
from weft.engine.output_stream import LoopDelivery, OutputStream
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.scheduling.sequence import RequestTimes

log = logging.getLogger(__name__)

T = TypeVar("T")

Receiver = Callable[[RequestOutput], None]
"""Called in the engine thread with each output of a request. It must not block."""
Converter = Callable[[RequestOutput], RequestOutput]
"""Called in the engine thread with each output before it is received. It must not raise."""
Command = Callable[["AsyncEngine"], None]
"""A command of another thread; runs in the engine thread between two steps."""


@dataclass(frozen=True)
class Submission:
    """A request that was submitted and not yet added to the engine."""

    request: PreparedRequest
    receive: Receiver
    set_times: Callable[[RequestTimes], None] | None = None
    """Called before the first output with the object that holds the times of the request."""


MAX_FAILURES = 3
"""Consecutive failed steps after which the engine thread stops the engine."""


class AsyncEngine:
    """An engine and the thread that steps it."""

    def __init__(
        self,
        engine: Engine,
        is_threaded: bool = True,
        now: Callable[[], float] = time.monotonic,
        thread: EngineThread | None = None,
    ) -> None:
        """`thread`: a thread shared with other engines; None: a thread of its own, which `close`
        ends."""
        self.engine, self.is_threaded, self.now = engine, is_threaded, now
        self.is_thread_owner = thread is None
        self.engine_thread = EngineThread() if thread is None else thread
        self.commands: deque[Command] = deque()
        self.received: deque[RequestOutput] = deque()
        """Outputs of the last step that were not delivered yet."""
        self.receivers: dict[str, Receiver] = {}
        """Receivers of the active requests, by request id."""
        self.loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopDelivery]
        self.loops = weakref.WeakKeyDictionary()
        self.step_began_at: float | None = None
        """Start time of the step or command that runs now, for a watchdog; None: none runs."""
        self.num_failures = 0
        self.num_threads = torch.get_num_threads()
        self.failure: BaseException | None = None
        """The exception that stopped the engine; None: it is running."""
        self.is_closed = False
        self.has_ended = threading.Event()
        """Set when the thread has left the engine for good."""
        if is_threaded:
            self.engine_thread.add(self)

    def __repr__(self) -> str:
        return f"AsyncEngine({self.engine!r}{', closed' * self.is_closed})"

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that steps the engine; None before its first use."""
        return self.engine_thread.thread

    def submit(
        self,
        request: GenerationRequest | PreparedRequest,
        receive: Receiver,
        request_id: str = "",
        set_times: Callable[[RequestTimes], None] | None = None,
    ) -> str:
        """Submit a request and return its id, a new one unless it is from `new_id`. Raises a
        UsageError for a request that can never be served."""
        if not isinstance(request, PreparedRequest):
            request = self.engine.prepare(request, request_id or None)
        self.submit_all([Submission(request, receive, set_times)])
        return request.id

    def submit_all(self, submissions: Sequence[Submission]) -> None:
        """Submit prepared requests; all of them are added before the next step."""
        self.post(partial(AsyncEngine.add_all, submissions=submissions))

    def submit_embedding(self, ids: Iterable[int], receive: Receiver, request_id: str = "") -> str:
        """Submit a text to embed; its output has the hidden states."""
        return self.submit(self.engine.prepare_embedding(ids, request_id or None), receive)

    def submit_score(self, ids: Iterable[int], receive: Receiver, request_id: str = "") -> str:
        """Submit a text to score; its output has the log-probabilities of its tokens."""
        return self.submit(self.engine.prepare_score(ids, request_id or None), receive)

    def abort(self, request_id: str) -> None:
        """Abort a request and free its pages before the next step. Does nothing if it is not
        active. Safe to call from any thread and from finalizers."""
        if self.is_usable:
            self.commands.append(partial(AsyncEngine.remove, request_id=request_id))
            if self.is_threaded:
                self.engine_thread.wake()

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Call `function(engine)` in the engine thread between two steps; returns a future of its
        result."""
        future: Future[T] = Future()
        self.post(partial(run_into, future=future, function=function))
        return future

    def run_units(self, units: Units[T]) -> Future[T]:
        """Run a generator in the engine thread, one unit (up to its next `yield`) between two
        steps; its return value is the result. Cancelling the future ends it after the current unit.
        It may run kernels, and must not change the engine's state."""
        self.check_usable()
        if not self.is_threaded:
            return run_all(units)
        future = self.engine_thread.background.submit(units)
        self.engine_thread.start()
        self.engine_thread.wake()
        if not self.is_usable:  # the thread may have ended in between
            future.cancel()
        return future

    def stream(
        self, *requests: GenerationRequest | PreparedRequest, convert: Converter | None = None
    ) -> OutputStream:
        """Submit requests from a coroutine and iterate over their outputs until all have ended.
        Closing or dropping the stream aborts the unfinished ones. `convert` is applied to each
        output in the engine thread, for work that must not run in the event loop (pooling)."""
        loop = asyncio.get_running_loop()
        delivery = self.loops.setdefault(loop, LoopDelivery(loop))
        prepared = [
            one if isinstance(one, PreparedRequest) else self.engine.prepare(one)
            for one in requests
        ]
        stream = OutputStream(self.abort, {one.id: one.num_samples for one in prepared})
        receive: Receiver = partial(delivery.add, weakref.ref(stream))
        if convert is not None:
            receive = partial(receive_converted, convert, receive)
        self.submit_all(
            [
                Submission(one, receive, partial(stream.times.__setitem__, one.id))
                for one in prepared
            ]
        )
        return stream

    def post(self, command: Command) -> None:
        """Queue a command, which the engine thread runs before its next step."""
        self.check_usable()
        self.num_threads = torch.get_num_threads()
        self.commands.append(command)
        if self.is_threaded:
            self.engine_thread.wake()
            if self.thread is None:
                self.engine_thread.start()
        if not self.is_usable:  # the thread may have ended in between
            self.run_commands()

    @property
    def is_usable(self) -> bool:
        is_ours = not self.is_threaded or os.getpid() == self.engine_thread.pid
        return is_ours and not self.is_closed and self.failure is None

    def check_usable(self) -> None:
        """Raise a UsageError or EngineError if nothing can be submitted."""
        if self.is_usable:
            return
        if self.is_threaded and os.getpid() != self.engine_thread.pid:
            raise UsageError(
                f"this engine belongs to process {self.engine_thread.pid}, and {os.getpid()} is a "
                "fork of it: threads do not survive a fork. Load the model in the child process, "
                "or start it with multiprocessing's 'spawn' method."
            )
        if self.is_closed:
            raise UsageError("the engine is closed: it takes no more requests. Load it again.")
        raise EngineError(
            f"the engine has stopped after {type(self.failure).__name__}: {self.failure}. "
            "Load the model again, and report this error if it repeats."
        )

    def add_all(self, submissions: Sequence[Submission]) -> None:
        """Engine thread: add requests. Idempotent."""
        for submission in submissions:
            self.add(submission)

    def add(self, submission: Submission) -> None:
        request = submission.request
        self.receivers[request.id] = submission.receive
        if not self.is_usable:
            self.end_requests("the engine was closed")
        elif request.id not in self.engine.requests:
            try:
                self.engine.add(request)
            except Exception as error:
                if not self.is_threaded:
                    raise
                log.exception("request=%s state=rejected", request.id)
                self.end_request(request.id, f"the request failed: {error}")
            times = self.engine.scheduler.times_of(request.id)
            if submission.set_times is not None and times is not None:
                submission.set_times(times)

    def remove(self, request_id: str) -> None:
        """Engine thread: abort a request."""
        self.receivers.pop(request_id, None)
        self.engine.abort(request_id)

    @property
    def busy_since(self) -> float | None:
        """Start time of the step, command or background unit that the engine thread runs now."""
        began = self.step_began_at
        return self.engine_thread.unit_began_at if began is None else began

    @property
    def has_commands(self) -> bool:
        return bool(self.commands)

    @property
    def has_work(self) -> bool:
        """Whether a request is active, or has outputs that were not delivered."""
        return not self.engine.is_idle

    def run_commands(self) -> None:
        """Engine thread: run the queued commands. A command that is interrupted is run again."""
        try:
            while self.commands:
                self.step_began_at = self.now()
                self.commands[0](self)
                self.commands.popleft()
        finally:
            self.step_began_at = None
        self.flush()

    def run_step(self, is_shared: bool = False) -> None:
        """Engine thread: run one engine step and deliver its outputs. `is_shared`: another engine
        of the thread has work."""
        self.engine.scheduler.state.is_shared = is_shared
        if self.is_threaded and torch.get_num_threads() != self.num_threads:
            torch.set_num_threads(self.num_threads)  # OpenMP has one setting for each thread
        self.step_began_at = self.now()
        try:
            if not self.received:
                self.received.extend(self.engine.step())
            self.num_failures = 0
        except Exception:
            # the engine has recovered. Requests that failed have outputs, which the next step
            # returns
            self.num_failures += 1
            log.exception("step=failed failures=%d", self.num_failures)
            if not self.is_threaded or self.num_failures >= MAX_FAILURES:
                raise
        finally:
            self.step_began_at = None
        self.deliver()

    def deliver(self) -> None:
        """Engine thread: pass outputs to their receivers. If a receiver raises, its request is
        aborted."""
        while self.received:
            request_id, is_end = self.received[0].request_id, self.received[0].is_end
            receive = self.receivers.get(request_id, ignore)
            try:
                receive(self.received.popleft())
            except Exception:
                if not self.is_threaded:
                    raise
                log.exception("request=%s state=aborted reason='its receiver failed'", request_id)
                self.remove(request_id)
            if is_end and not self.will_follow(request_id):
                self.receivers.pop(request_id, None)
        self.flush()

    def will_follow(self, request_id: str) -> bool:
        """Whether further outputs of a request will follow, such as those of its other samples."""
        is_here = any(output.request_id == request_id for output in self.received)
        return is_here or self.engine.is_active(request_id)

    def flush(self) -> None:
        """Engine thread: wake up the event loops that have outputs."""
        for delivery in list(self.loops.values()):
            delivery.flush()

    def fail(self, error: BaseException) -> None:
        """Engine thread: stop the engine after an exception. All requests end with an error, and no
        new ones are accepted."""
        self.failure = error
        log.critical("engine=stopped requests=%d", len(self.receivers), exc_info=error)
        self.end_requests(f"the engine stopped with {type(error).__name__}: {error}")
        self.has_ended.set()
        if self.is_thread_owner:
            self.engine_thread.close()

    def end(self) -> None:
        """Engine thread: the engine was closed; end all requests with an error."""
        self.run_commands()
        self.end_requests("the engine was closed")
        self.has_ended.set()

    def end_requests(self, reason: str) -> None:
        """End all requests with an error as their last output."""
        for request_id in list(self.receivers):
            self.end_request(request_id, reason)
        self.flush()

    def end_request(self, request_id: str, reason: str) -> None:
        receive = self.receivers.pop(request_id, ignore)
        try:
            receive(RequestOutput(request_id, error=reason))
        except Exception:
            log.exception("request=%s state=lost", request_id)

    @property
    def is_alive(self) -> bool:
        """Whether requests can be served: the thread runs, or has not been started yet."""
        return self.failure is None and not self.is_closed and self.engine_thread.is_alive

    def close(self) -> None:
        """Stop after the current step, and end the thread unless other engines use it. Running
        requests end with an error."""
        self.is_closed = True
        if self.is_thread_owner:
            self.engine_thread.close()
            return
        self.engine_thread.wake()
        if self.engine_thread.can_wait and self.engine_thread.is_alive:
            self.has_ended.wait(CLOSE_SECONDS)

    def __enter__(self) -> AsyncEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def ignore(output: RequestOutput) -> None:
    """The receiver of requests that were aborted."""


def receive_converted(convert: Converter, receive: Receiver, output: RequestOutput) -> None:
    receive(convert(output))


def run_into(owner: AsyncEngine, future: Future[T], function: Callable[[Engine], T]) -> None:
    """Engine thread: set the result of a future, or its exception."""
    if future.done() or not (future.running() or future.set_running_or_notify_cancel()):
        return
    try:
        future.set_result(function(owner.engine))
    except BaseException as error:
        future.set_exception(error)
