"""SIGINT and SIGTERM ask a run to stop; it saves first, then leaves with the signal's code."""

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
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = number

    def leave(self) -> NoReturn:
        assert self.signal is not None, "nobody asked to stop"
        raise StoppedBySignal(self.signal)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM set; afterwards both do what they did before."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, request.ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
