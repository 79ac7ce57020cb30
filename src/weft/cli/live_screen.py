"""A terminal as a screen that is redrawn: lines in, single keys out, restored on any exit.

    with LiveScreen() as screen:
        screen.draw(["one line", "another"])      everything else is cleared
        key = screen.key(timeout=0.0)             "q", or "" if none was pressed

Uses the alternate screen, without cursor and line wrapping, and reads keys unbuffered and without
echo. Ctrl-C raises KeyboardInterrupt as usual; SIGTERM and SIGHUP raise SystemExit, so that the
terminal is restored for them too; Ctrl-Z restores it until the process continues. Differs from
rich's Live, which reads no keys and draws into the scroll-back.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
STDIN = 0
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def can_redraw() -> bool:
    """Whether standard output is a terminal that can be redrawn."""
    try:
        import termios  # noqa: F401  # not on Windows
    except ImportError:
        return False
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


class LiveScreen:
    """The terminal of standard output. Keys come from standard input, or from the terminal of the
    process if that is a pipe."""

    def __init__(self) -> None:
        self.keyboard: int | None = None
        self.saved_mode: list[Any] | None = None
        self.saved_handlers: dict[int, Any] = {}
        self.is_open = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return shutil.get_terminal_size()

    def __enter__(self) -> LiveScreen:
        self.keyboard = open_keyboard()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.saved_handlers[number] = signal.signal(number, self.exit)
        self.saved_handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self.suspend)
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Switch to the alternate screen and to unbuffered keys."""
        import termios
        import tty

        self.is_open = True
        if self.keyboard is not None:
            self.saved_mode = termios.tcgetattr(self.keyboard)
            tty.setcbreak(self.keyboard)
        write(ENTER)

    def restore(self) -> None:
        """Switch back."""
        import termios

        if self.is_open:
            self.is_open = False
            write(LEAVE)
        if self.keyboard is not None and self.saved_mode is not None:
            termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self.saved_mode)
            self.saved_mode = None

    def close(self) -> None:
        """Restore the terminal and the signal handlers."""
        try:
            self.restore()
        finally:
            if self.keyboard not in (None, STDIN):
                os.close(self.keyboard)
            self.keyboard = None
            for number, handler in self.saved_handlers.items():
                signal.signal(number, handler)
            self.saved_handlers.clear()

    def exit(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGHUP."""
        raise SystemExit(128 + number)

    def suspend(self, number: int, frame: FrameType | None) -> None:
        """The handler of Ctrl-Z: stop with a restored terminal, and continue on the screen."""
        self.restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.suspend)  # the process has been continued
        self.open()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, from the top, and nothing else. None may be wider than the terminal."""
        body = (CLEAR_LINE + "\r\n").join(lines)
        write(HOME + body + CLEAR_LINE + CLEAR_BELOW)

    def key(self, timeout: float = 0.0) -> str:
        """A key that was pressed, waiting up to `timeout` seconds for it; "" if there is none."""
        if self.keyboard is None:
            if timeout:
                select.select([], [], [], timeout)
            return ""
        ready, _, _ = select.select([self.keyboard], [], [], timeout)
        return os.read(self.keyboard, 1).decode("ascii", "replace") if ready else ""


def open_keyboard() -> int | None:
    """The descriptor that keys are read from; None without a terminal."""
    try:
        if sys.stdin.isatty():
            return STDIN
        return os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError, AttributeError):  # no terminal, or standard input is closed
        return None


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
