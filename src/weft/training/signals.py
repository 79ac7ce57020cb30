"""SIGINT and SIGTERM stop a run: it saves a checkpoint, then exits with the signal's code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class StoppedBySignal(BaseException):
    """Raised after saving. `exit_code` is 130 for SIGINT and 143 for SIGTERM, as shells expect."""

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


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Replace the handlers of SIGINT and SIGTERM by a stop request, and restore them at the end."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, request.handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
