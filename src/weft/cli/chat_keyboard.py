"""The keyboard of a chat while an answer is generated: Ctrl-C stops it, other keys wait.

    with ChatSignals() as signals:              as long as the chat lasts
        with signals.stoppable():               while an answer is generated
            ...                                 Ctrl-C raises KeyboardInterrupt here, once

Outside of `stoppable`, Ctrl-C is ignored, except by the prompt, which has its own key binding.
Inside, typed keys are not echoed into the answer, and pasted text keeps its markers (bracketed
paste), so that it is one message at the next prompt. The signal handler need not wait for the
engine: the main thread waits in a queue, where KeyboardInterrupt takes effect at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
ENDING = ("SIGTERM", "SIGHUP")
"""Signals that end the chat; not all systems have all of them."""


class ChatSignals:
    """Handlers of the signals that the keyboard or another process sends to a chat."""

    def __init__(self) -> None:
        self.is_stoppable = self.is_pending = False
        self.saved_handlers: dict[int, Any] = {}

    def __enter__(self) -> ChatSignals:
        self.install(signal.SIGINT, self.interrupt)
        for name in ENDING:
            if hasattr(signal, name):
                self.install(getattr(signal, name), self.exit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self.saved_handlers.items():
            signal.signal(number, handler)

    def install(self, number: int, handler: Any) -> None:
        self.saved_handlers[number] = signal.signal(number, handler)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """The handler of Ctrl-C. A second one must not interrupt what follows the first."""
        if self.is_stoppable:
            self.is_stoppable = False
            raise KeyboardInterrupt
        self.is_pending = True

    def exit(self, number: int, frame: FrameType | None) -> None:
        """End the process through its cleanup, which restores the terminal."""
        raise SystemExit(128 + number)

    def expect(self) -> None:
        """A message was sent: a Ctrl-C from now on interrupts its answer."""
        signal.signal(signal.SIGINT, self.interrupt)  # the prompt has had its own handler
        self.is_pending = False

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Inside the block Ctrl-C raises KeyboardInterrupt, also one that arrived after
        `expect`."""
        with quiet_keyboard():
            self.is_stoppable = True
            try:
                if self.is_pending:
                    self.interrupt(signal.SIGINT, None)
                yield
            finally:
                self.is_stoppable = self.is_pending = False


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Disable the echo inside the block; typed keys remain in the input. Ctrl-Z restores the
    terminal and suspends the process."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    keyboard = sys.stdin.fileno()
    mode = termios.tcgetattr(keyboard)

    def enter() -> None:
        quiet = termios.tcgetattr(keyboard)
        quiet[0] &= ~(termios.ICRNL | termios.IXON)  # Enter stays different from a line break
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        quiet[3] |= termios.NOFLSH  # Ctrl-C does not discard what was typed before it
        termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
        write(BRACKETED_PASTE_ON)

    def leave() -> None:
        write(BRACKETED_PASTE_OFF)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, mode)

    def suspend(number: int, frame: FrameType | None) -> None:
        leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)  # the process has been continued
        enter()

    previous = signal.signal(signal.SIGTSTP, suspend)
    try:
        enter()
        yield
    finally:
        leave()
        signal.signal(signal.SIGTSTP, previous)


def write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
