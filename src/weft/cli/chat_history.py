"""Messages typed in `weft chat`, kept for the next one: one JSON string per line.

The file is $WEFT_STATE/chat_history, by default ~/.local/state/weft/chat_history, and only its
owner can read it (mode 0600). Differs from prompt_toolkit's FileHistory: the mode, a bound on the
size, and a file that cannot be written is a warning, not an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from weft.cli.output import status

MAX_BYTES = 1 << 20
"""A larger file keeps its newer half when it is opened."""


def history_path() -> Path:
    """Where the messages are kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("WEFT_STATE") or Path(state) / "weft") / "chat_history"


class ChatHistory(History):
    """The messages of earlier chats. Several chats may append at the same time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.is_writable = True

    def load_history_strings(self) -> Iterable[str]:
        """The messages, newest first."""
        try:
            lines = self.read_lines()
        except OSError as error:
            self.warn(error)
            return []
        return [text for line in reversed(lines) if (text := parse(line)) is not None]

    def read_lines(self) -> list[bytes]:
        """The lines of the file, which is shortened if it is too large."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().splitlines()
        if sum(map(len, lines)) > MAX_BYTES:
            lines = lines[len(lines) // 2 :]
            new = self.path.with_suffix(f".{os.getpid()}")
            self.write(new, os.O_TRUNC, b"".join(line + b"\n" for line in lines))
            new.replace(self.path)
        return lines

    def store_string(self, string: str) -> None:
        """Append a message."""
        if not self.is_writable:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.write(self.path, os.O_APPEND, json.dumps(string).encode() + b"\n")
        except OSError as error:
            self.warn(error)

    def write(self, path: Path, mode: int, data: bytes) -> None:
        """Write to a file that only its owner can read, whatever mode it had."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def warn(self, error: OSError) -> None:
        self.is_writable = False
        status(f"{self.path}: {error.strerror}. The messages of this chat are not kept.")


def parse(line: bytes) -> str | None:
    """The message of a line; None for a line that is damaged."""
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
