"""`AsyncEngine`: an engine that runs in a thread. Any thread or event loop submits requests.

    engine = AsyncEngine(Engine(model, tokenizer))
    async for output in engine.stream(request): ...             # asyncio
    engine.submit(request, queue.put)                           # threads: called with each output
    engine.call(lambda engine: engine.statistics()).result()    # runs between two steps
    engine.close()

Only the engine thread (engine_thread.py) accesses the engine and runs kernels. It belongs to this
engine alone, or is passed in and shared with other engines. Other threads put commands (submit,
abort, call) into a queue, which the engine thread reads between two steps. One thread takes a
command out of it: the engine thread, which runs it, or its caller, who raises an error if the
engine was closed meanwhile. Requests are checked and their grammars compiled in the calling thread
(`Engine.prepare`).

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
from contextlib import suppress
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
        self.taken: list[Command] = []
        """The command that runs now, or was interrupted; at most one."""
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
        """Submit prepared requests; all of them are added before the next step. One with the id of
        a request that has not ended gets an error as its output."""
        self.post(partial(AsyncEngine.add_all, submissions=deque(submissions)))

    def submit_embedding(self, ids: Iterable[int], receive: Receiver, request_id: str = "") -> str:
        """Submit a text to embed; its output has the hidden states."""
        return self.submit(self.engine.prepare_embedding(ids, request_id or None), receive)

    def submit_score(self, ids: Iterable[int], receive: Receiver, request_id: str = "") -> str:
        """Submit a text to score; its output has the log-probabilities of its tokens."""
        return self.submit(self.engine.prepare_score(ids, request_id or None), receive)

    def abort(self, request_id: str) -> None:
        """Abort a request and free its pages before the next step; its receiver gets no output any
        more. Does nothing if it is not active. Safe to call from any thread and from finalizers."""
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
        """Queue a command, which the engine thread runs before its next step. Raises an error if it
        will not run."""
        self.check_usable()
        self.num_threads = torch.get_num_threads()
        self.commands.append(command)
        if self.is_threaded:
            self.engine_thread.wake()
            if self.thread is None:
                self.engine_thread.start()
        if not self.is_usable:  # the thread may have ended in between, or may be about to
            try:
                self.commands.remove(command)
            except ValueError:
                return  # the thread has taken it, and answers it
            self.check_usable()

    @property
    def is_usable(self) -> bool:
        if self.is_closed or self.failure is not None:
            return False
        thread = self.engine_thread
        return not self.is_threaded or (os.getpid() == thread.pid and thread.is_alive)

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
        if self.failure is None:
            raise UsageError(
                "the EngineThread of this engine is closed: it runs no engines any more. Load the "
                "model with another one, or without."
            )
        raise EngineError(
            f"the engine has stopped after {type(self.failure).__name__}: {self.failure}. "
            "Load the model again, and report this error if it repeats."
        )

    def add_all(self, submissions: deque[Submission]) -> None:
        """Engine thread: add requests. If it is interrupted, the next call adds the others."""
        while submissions:
            self.add(submissions[0])
            submissions.popleft()

    def add(self, submission: Submission) -> None:
        """Engine thread: add a request, unless an interrupted call has added it."""
        request, receive = submission.request, submission.receive
        active = self.engine.requests.get(request.id, request.request)
        if active is not request.request or self.receivers.get(request.id, receive) is not receive:
            error = f"the id {request.id!r} is that of a request that has not ended. Use another."
            answer(receive, RequestOutput(request.id, error=error))
            return
        self.receivers[request.id] = receive
        if not self.is_usable:
            self.end_request(request.id, self.end_reason)
        elif request.id not in self.engine.requests:
            self.add_to_engine(submission)

    def add_to_engine(self, submission: Submission) -> None:
        request = submission.request
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
        if self.failure is None:
            self.engine.abort(request_id)

    @property
    def busy_since(self) -> float | None:
        """Start time of the step, command or background unit that the engine thread runs now."""
        began = self.step_began_at
        return self.engine_thread.unit_began_at if began is None else began

    @property
    def has_commands(self) -> bool:
        return bool(self.commands or self.taken)

    @property
    def has_work(self) -> bool:
        """Whether a request is active, or has outputs that were not delivered."""
        return not self.engine.is_idle

    def run_commands(self) -> None:
        """Engine thread: run the queued commands. A command that is interrupted is run again."""
        try:
            while self.has_commands:
                self.step_began_at = self.now()
                self.take_command()
                for command in self.taken:
                    command(self)
                self.taken.clear()
        finally:
            self.step_began_at = None
        self.flush()

    def take_command(self) -> None:
        """Engine thread: take the next command, unless one was interrupted."""
        if not self.taken:
            with suppress(IndexError):  # its caller has taken it back
                # one call: no exception can come between the two, so that none is lost
                self.taken.extend(map(deque.popleft, [self.commands]))

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
        try:
            self.answer_commands()
            self.end_requests(self.end_reason)
        finally:
            self.has_ended.set()
            if self.is_thread_owner:
                self.engine_thread.close()

    def answer_commands(self) -> None:
        """Engine thread: run the commands of an engine that has failed, which only answers them."""
        while self.has_commands:
            try:
                self.run_commands()
            except BaseException:
                log.exception("command=lost")
                self.taken.clear()

    def end(self) -> None:
        """Engine thread: the engine was closed; end all requests with an error."""
        self.run_commands()
        self.end_requests(self.end_reason)
        self.has_ended.set()

    @property
    def end_reason(self) -> str:
        """Why requests end that have not finished."""
        if self.failure is None:
            return "the engine was closed"
        return f"the engine stopped with {type(self.failure).__name__}: {self.failure}"

    def end_requests(self, reason: str) -> None:
        """End all requests with an error as their last output."""
        for request_id in list(self.receivers):
            self.end_request(request_id, reason)
        self.flush()

    def end_request(self, request_id: str, reason: str) -> None:
        receive = self.receivers.pop(request_id, ignore)
        answer(receive, RequestOutput(request_id, error=reason))

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


def answer(receive: Receiver, output: RequestOutput) -> None:
    """Pass a last output to its receiver, whatever that raises."""
    try:
        receive(output)
    except Exception:
        log.exception("request=%s state=lost", output.request_id)


def receive_converted(convert: Converter, receive: Receiver, output: RequestOutput) -> None:
    receive(convert(output))


def run_into(owner: AsyncEngine, future: Future[T], function: Callable[[Engine], T]) -> None:
    """Engine thread: set the result of a future, or its exception. The function is called once at
    most: if this was interrupted, it may have been called."""
    if future.running():
        future.set_exception(EngineError("the call was interrupted. Repeat it."))
    elif not future.done() and future.set_running_or_notify_cancel():
        try:
            if owner.failure is not None:
                owner.check_usable()
            future.set_result(function(owner.engine))
        except BaseException as error:
            future.set_exception(error)
