"""Defers SIGINT during an engine step to the end of a forward pass.

    with interrupts:        a signal that arrives is recorded
        ...
        interrupts.check()  calls the previous handler for it, which usually raises
    ...                     the end of the block calls it as well

Python runs signal handlers between any two instructions, so a KeyboardInterrupt could be raised in
the middle of a change of the page tables. Differs from blocking the signal (pthread_sigmask), which
would also keep it from other threads and from child processes started meanwhile. In other threads
than the main one, and if SIGINT is ignored, nothing is done.
"""

from __future__ import annotations

import threading

# the functions of `signal` look their result up in an enum, which takes ten times as long
from _signal import SIGINT, default_int_handler, getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from types import FrameType, TracebackType

SignalHandler = Callable[[int, FrameType | None], object]


class DeferredInterrupts:
    """A context manager that can be entered again and again, but not twice at once."""

    def __init__(self) -> None:
        self.previous: SignalHandler | None = None
        self.is_active = self.is_pending = False

    def __enter__(self) -> DeferredInterrupts:
        if threading.current_thread() is threading.main_thread():
            handler = getsignal(SIGINT)
            # it is still installed if an exception interrupted `__exit__`
            if callable(handler) and handler != self.note:
                self.previous = handler
            if callable(handler):
                self.is_active = True
                set_handler(SIGINT, self.note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_active:
            self.is_active = False
            set_handler(SIGINT, self.previous or default_int_handler)
            self.check()

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler during a step."""
        self.is_pending = True
        if not self.is_active:
            self.check()

    def check(self) -> None:
        """Handle a signal that has arrived; a KeyboardInterrupt if the previous handler raises
        it."""
        if self.is_pending:
            self.is_pending = False
            (self.previous or default_int_handler)(SIGINT, None)
