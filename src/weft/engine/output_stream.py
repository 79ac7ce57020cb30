"""`OutputStream`: the outputs of an asynchronous engine for one coroutine.

The engine thread queues the outputs of a step for each event loop (`LoopDelivery`), which puts them
into their streams with one wakeup. Closing or dropping a stream aborts what has not ended.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable

from weft.engine.request import RequestOutput
from weft.engine.scheduling.sequence import RequestTimes

log = logging.getLogger(__name__)


class LoopDelivery:
    """Outputs of one step for the streams of one event loop, delivered with one wakeup."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.pending: list[tuple[weakref.ref[OutputStream], RequestOutput]] = []

    def add(self, stream: weakref.ref[OutputStream], output: RequestOutput) -> None:
        """Engine thread: queue an output."""
        self.pending.append((stream, output))

    def flush(self) -> None:
        """Engine thread: let the event loop distribute what is queued."""
        loop = self.loop()
        if not self.pending or loop is None:
            return
        pending, self.pending = self.pending, []
        try:
            loop.call_soon_threadsafe(distribute, pending)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("outputs=%d state=dropped reason='event loop closed'", len(pending))


def distribute(pending: list[tuple[weakref.ref[OutputStream], RequestOutput]]) -> None:
    """Event loop: put outputs into their streams and wake up those that wait."""
    for ref, output in pending:
        stream = ref()
        if stream is not None:
            stream.put(output)


class OutputStream:
    """The outputs of some requests for one coroutine: an asynchronous iterator."""

    def __init__(self, abort: Callable[[str], None], num_left: dict[str, int]) -> None:
        """`abort`: ends a request of the engine."""
        self.abort, self.num_left = abort, num_left
        """`num_left`: by request, samples whose last output has not been read."""
        self.ids = list(num_left)
        self.num_running = dict(num_left)
        """Number of samples whose last output has not arrived, by request."""
        self.when_ended: Callable[[], None] | None = None
        """Called once in the event loop, when the engine is done with all requests, whether or not
        the outputs have been read."""
        self.outputs: deque[RequestOutput] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.interruption: Exception | None = None
        """The error that is raised instead of waiting for another output."""
        self.times: dict[str, RequestTimes] = {}
        """Times and cached tokens of the requests, once they were added to the engine."""

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        if output.is_end:
            self.count_end(output)
        self.wake()

    def wake(self) -> None:
        """Wake up the coroutine that waits for an output."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def interrupt(self, error: Exception) -> None:
        """Event loop: raise this error in the coroutine that waits for an output. Cheaper than a
        timeout around each output."""
        self.interruption = error
        self.wake()

    def count_end(self, output: RequestOutput) -> None:
        """Count the last output of a sample, or of a request that failed."""
        left = self.num_running.get(output.request_id, 1) - 1
        if left > 0 and output.error is None:
            self.num_running[output.request_id] = left
            return
        self.num_running.pop(output.request_id, None)
        if not self.num_running and self.when_ended is not None:
            self.when_ended()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self.num_left and not self.outputs:
            raise StopAsyncIteration
        try:
            while not self.outputs:
                if self.interruption is not None:
                    raise self.interruption
                self.waiter = asyncio.get_running_loop().create_future()
                await self.waiter
        except BaseException:
            self.close()
            raise
        output = self.outputs.popleft()
        if output.is_end and output.request_id in self.num_left:
            self.num_left[output.request_id] -= 1
            if output.error is not None or self.num_left[output.request_id] < 1:
                del self.num_left[output.request_id]
        return output

    def close(self) -> None:
        """Abort the requests that have not ended."""
        left, self.num_left = self.num_left, {}
        if left:
            self.outputs.clear()
        for request_id in left:
            self.abort(request_id)

    async def aclose(self) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
