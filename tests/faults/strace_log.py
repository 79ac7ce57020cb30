"""The log of `strace -f -y -xx -o LOG` -> the system calls that returned, in order of their return.

    17624 openat(AT_FDCWD<\\x2f>, "\\x61", O_WRONLY|O_CREAT|O_CLOEXEC, 0666) = 3<\\x2f\\x61>
    17624 write(3<\\x2f\\x61>, "\\x68\\x69", 2 <unfinished ...>
    17630 fsync(4<\\x2f\\x62>) = -1 EIO (Input/output error) (INJECTED)
    17624 <... write resumed>) = 2

-xx prints every string and path in hexadecimal, so that no character of a name or of the data can
be mistaken for syntax.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COMPLETE = re.compile(r"(\w+)\((.*)\)\s+= (0x[0-9a-f]+|-?\d+|\?)(.*)", re.DOTALL)
RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
UNFINISHED = " <unfinished ...>"
DESCRIPTOR = re.compile(r"(-?\d+|AT_FDCWD)(?:<([^>]*)>)?(?:\(deleted\))?$")
IOVEC = re.compile(r'iov_base="([^"]*)"(\.\.\.)?, iov_len=(\d+)')


class LogError(Exception):
    """A log that cannot be interpreted without loss, such as one with shortened strings."""


@dataclass(frozen=True)
class Descriptor:
    """A file descriptor argument and the path that strace printed for it."""

    number: int | None
    """None: AT_FDCWD."""
    path: str


@dataclass(frozen=True)
class SystemCall:
    """One call that returned."""

    thread: int
    name: str
    args: list[str]
    result: int
    tail: str
    """What follows the result: the path of a descriptor, or the name of an error."""
    ordinal: int
    """The how many-th call of this name in its thread, counted from 1, failed ones included:
    what strace's `when=` counts."""

    @property
    def is_injected(self) -> bool:
        return "(INJECTED)" in self.tail

    def text(self, index: int) -> str:
        """A string argument that is a path."""
        return self.data(index).decode("utf-8", "surrogateescape")

    def data(self, index: int) -> bytes:
        """A string argument."""
        arg = self.args[index]
        if not (arg.startswith('"') and arg.endswith('"')):
            raise LogError(f"{self.name}: argument {index} is {arg[:80]}, not a complete string")
        return unhex(arg[1:-1])

    def vector(self, index: int) -> bytes:
        """The concatenated buffers of a writev."""
        parts = []
        for encoded, shortened, length in IOVEC.findall(self.args[index]):
            part = unhex(encoded)
            if shortened or len(part) != int(length):
                raise LogError(f"{self.name}: a buffer was shortened to {len(part)} bytes")
            parts.append(part)
        return b"".join(parts)

    def number(self, index: int) -> int:
        return int(self.args[index], 0)

    def descriptor(self, index: int) -> Descriptor:
        match = DESCRIPTOR.match(self.args[index])
        if match is None:
            raise LogError(f"{self.name}: argument {index} is {self.args[index]}, not a descriptor")
        number = None if match[1] == "AT_FDCWD" else int(match[1])
        return Descriptor(number, unhex(match[2] or "").decode("utf-8", "surrogateescape"))

    @property
    def paths(self) -> list[str]:
        """The arguments that are paths, and those of descriptors; not the data of a write."""
        paths = []
        for index, arg in enumerate(self.args):
            if arg.startswith('"') and "write" not in self.name:
                paths.append(self.text(index))
            elif "<" in arg and DESCRIPTOR.match(arg):
                paths.append(self.descriptor(index).path)
        return paths

    def flags(self, index: int) -> set[str]:
        return set(self.args[index].split("|")) if index < len(self.args) else set()


def parse_log(lines: Iterable[str]) -> Iterator[SystemCall]:
    unfinished: dict[str, str] = {}
    ordinals: Counter[tuple[str, str]] = Counter()
    for line in lines:
        thread, _, text = line.rstrip("\n").partition(" ")
        text = text.lstrip()
        if text.endswith(UNFINISHED):
            unfinished[thread] = text.removesuffix(UNFINISHED)
            continue
        if resumed := RESUMED.match(text):
            text = unfinished.pop(thread) + resumed[2]
        if text.startswith(("+++", "---")):
            continue  # a process that ended, a signal
        complete = COMPLETE.match(text)
        if complete is None:
            raise LogError(f"unknown line of strace: {line[:200]}")
        name, args, result, tail = complete.groups()
        ordinals[thread, name] += 1
        if result != "?":  # the call of a process that was killed in it
            count = ordinals[thread, name]
            yield SystemCall(
                int(thread), name, split_args(args), int(result, 0), tail.strip(), count
            )


def split_args(text: str) -> list[str]:
    """Divide at the commas outside of brackets; strings contain neither, being hexadecimal."""
    if "[" not in text and "{" not in text:
        return text.split(", ") if text else []
    args, depth, start = [], 0, 0
    for match in re.finditer(r"[\[{]|[\]}]|, ", text):
        if match[0] == ", ":
            if depth == 0:
                args.append(text[start : match.start()])
                start = match.end()
        else:
            depth += 1 if match[0] in "[{" else -1
    return [*args, text[start:]]


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
