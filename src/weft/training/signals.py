"""SIGINT, SIGTERM and SIGHUP stop a run: it saves a checkpoint, then exits with the signal's code.

    signal -> the handler sets a StopRequest    between two instructions of Python: after the step
           -> the wakeup file descriptor        at once: a thread says that the run will stop

Python calls a handler only between two of its instructions, and a step may be one long call of
torch. The wakeup file descriptor (signal.set_wakeup_fd) is written by the signal handler in C.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 1.0
"""A second SIGINT ends the process at once, unless it follows so soon that it is the same key:
torchrun and make forward signals that the terminal has sent to the process already."""


class StoppedBySignal(BaseException):
    """Raised after saving. `exit_code` is 128 plus the number of the signal, as shells expect."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.exit_code = 128 + number


class StopRequest:
    """Set by a signal, checked by the training loop after each step."""

    def __init__(self) -> None:
        self.is_set = False
        self.signal = 0

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler."""
        self.is_set, self.signal = True, number

    def raise_stopped(self) -> NoReturn:
        raise StoppedBySignal(self.signal)


def is_main_thread() -> bool:
    """Only the main thread may set signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Replace the handlers of the signals by a stop request, and restore them at the end. SIGHUP
    stays ignored where it is, as below nohup. In another thread than the main one nothing is
    replaced."""
    request = StopRequest()
    if not is_main_thread():
        yield request
        return
    before = {
        number: signal.signal(number, request.handle)
        for number in NUMBERS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def acknowledge_signals(
    report: Callable[[], None],
    exit_now: Callable[[int], None] = os._exit,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Call `report` from a thread as soon as one of the signals arrives. A second SIGINT ends the
    process without saving: what is on the disk stays complete. For commands, which own the process;
    the handlers of the signals are not changed."""
    if not is_main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)  # as set_wakeup_fd requires
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(
        target=report_signals, args=(reader, report, exit_now, now), name="signals", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()  # the thread reads to the end
        thread.join()
        reader.close()


def report_signals(
    reader: socket.socket,
    report: Callable[[], None],
    exit_now: Callable[[int], None],
    now: Callable[[], float],
) -> None:
    """Read the numbers of signals until the other end is closed."""
    first: float | None = None
    while number := reader.recv(1):
        if number[0] not in NUMBERS:
            continue
        if first is None:
            first = now()
            report()
        elif number[0] == signal.SIGINT and now() - first >= AGAIN_SECONDS:
            exit_now(128 + signal.SIGINT)
