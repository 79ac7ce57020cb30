"""A pseudo terminal in which commands run, and the screen that somebody in front of it sees."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import termios
import time
from collections.abc import Mapping

import pexpect
import pyte

SCRIPT = """
import json, sys
from weft.cli.app import main
codes = [main(words) for words in json.loads(sys.argv[1])]
sys.exit(codes[-1])
"""
SHELL = "set -m; {}; echo STOPPED; read; fg"


class Terminal:
    """A process in a pseudo terminal, and its screen."""

    def __init__(
        self,
        columns: int,
        lines: int,
        *runs: list[str],
        has_shell: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`runs`: command lines that one process runs, one after the other. `has_shell`: a shell
        runs it, and after Ctrl-Z continues it at the next line of input."""
        words = [sys.executable, "-c", SCRIPT, json.dumps(runs)]
        if has_shell:
            words = ["bash", "-c", SHELL.format(shlex.join(words))]
        self.screen = pyte.Screen(columns, lines)
        self.stream, self.received = pyte.Stream(self.screen), ""
        # the size is that of the terminal, not what the variables of its parent say
        variables = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        self.process = pexpect.spawn(
            words[0],
            words[1:],
            dimensions=(lines, columns),
            encoding="utf-8",
            timeout=60,
            use_poll=True,
            env={
                **variables,
                "TERM": "xterm",
                "LC_ALL": "C.UTF-8",
                "PYTHONWARNINGS": "ignore",
                **(env or {}),
            },
        )
        self.screen.write_process_input = self.process.send  # answers of the terminal
        self.mode = termios.tcgetattr(self.process.child_fd)

    def read(self) -> bool:
        """Show what has arrived; False: the process has ended."""
        try:
            text = self.process.read_nonblocking(1 << 16, 0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.received += text
        self.stream.feed(text)
        return True

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until the screen matches; fails after 60 seconds."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            match = re.search(pattern, self.text)
            if match:
                return match
            if not self.read():
                break
        raise AssertionError(f"no {pattern!r} on\n{self.text}")

    def wait(self) -> int:
        """Until the process has ended; its exit code."""
        while self.read():
            pass
        self.mode_at_end = termios.tcgetattr(self.process.child_fd)
        self.process.close()
        code = self.process.exitstatus
        return code if code is not None else -self.process.signalstatus

    def resize(self, columns: int, lines: int) -> None:
        self.process.setwinsize(lines, columns)
        self.screen.resize(lines, columns)
        self.screen.reset()
