"""System calls of a process -> the operations on the files below one folder.

Everything that changes a file is seen below Python: writes of Rust and C libraries too. What the
log of strace cannot show raises a LogError instead of being left out: writable shared mappings,
io_uring, unnamed temporary files, a second process that writes to the folder. As a last check,
`Recording.check_final` compares the replayed result with the real folder.

Descriptors are followed from open to close, as strace prints no file offsets: lseek, read and dup
are traced for this reason only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .comparison import common_name
from .filesystem import (
    MIN_TORN,
    Create,
    Link,
    Loss,
    MakeFolder,
    MakeSymlink,
    ModelFileSystem,
    NoChange,
    Operation,
    Remove,
    Rename,
    Sync,
    SyncAll,
    Tree,
    Truncate,
    Write,
    hash_tree,
    replay,
)
from .strace_log import LogError, SystemCall

WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile")
CHANGES = (
    *WRITES,
    *("open", "openat", "creat", "truncate", "ftruncate", "fallocate"),
    *("fsync", "fdatasync", "sync_file_range", "sync", "syncfs"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"),
    *("mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat"),
)
"""Calls that are crash points if they change something below the folder."""
DESCRIPTORS = ("close", "close_range", "dup", "dup2", "dup3", "fcntl", "lseek")
FORKS = ("clone", "clone3", "fork", "vfork")
FOLDERS = ("chdir", "fchdir")
UNSEEN = ("mmap", "openat2", "io_uring_setup", "splice", "mknod", "mknodat")
"""Calls that can change a file in a way that the log does not show."""
READS = ("read", "readv")
TRACED = (*CHANGES, *DESCRIPTORS, *FORKS, *FOLDERS, *UNSEEN, *READS)


@dataclass
class OpenFile:
    """An open file description: what descriptors made by dup share."""

    node: int
    offset: int
    is_append: bool


@dataclass(frozen=True)
class CrashPoint:
    """A call that changed the folder; the process can be killed before it."""

    operation: Operation
    call: SystemCall
    label: str
    """The call in one line, for messages."""
    is_append: bool = False
    """A write to the end of a file that has content."""

    @property
    def is_torn(self) -> bool:
        """Whether the process can also be killed in its middle."""
        operation = self.operation
        is_write = isinstance(operation, Write)
        return is_write and (len(operation.data) >= MIN_TORN or self.is_append)


@dataclass(frozen=True)
class Recording:
    """The crash points of one run of a command."""

    initial: Tree
    points: list[CrashPoint]
    calls: list[SystemCall]
    """All traced calls, also those of other files."""
    root: Path

    def check_final(self, actual: Tree) -> None:
        """The replay must end in the real result; otherwise the log missed a change."""
        final = replay(self.initial, (point.operation for point in self.points)).tree(Loss.KILL)
        if hash_tree(final) == hash_tree(actual):
            return
        paths = sorted(final.keys() | actual.keys())
        wrong = [p for p in paths if final.get(p, "absent") != actual.get(p, "absent")]
        raise LogError(f"the replayed log and the real folder differ in {', '.join(wrong[:5])}")


def record(initial: Tree, root: Path, calls: Iterable[SystemCall]) -> Recording:
    """Interpret the calls of a process that was started in `root`."""
    calls = list(calls)
    interpreter = Interpreter(initial, root, other_processes(calls))
    for call in calls:
        interpreter.handle(call)
    return Recording(initial, interpreter.points, calls, interpreter.root)


@dataclass(frozen=True)
class FaultLocation:
    """Where in a run a fault was injected: enough to compare it with a call of another run."""

    num_before: int
    """Changes of the folder before it."""
    name: str | None
    """None: the process was killed in this call."""
    paths: tuple[str, ...] = ()
    """Arguments that are paths, relative to the folder, with temporary names as *."""

    def is_at(self, other: FaultLocation) -> bool:
        has_same_call = (self.name, self.paths) == (other.name, other.paths)
        return self.num_before == other.num_before and (self.name is None or has_same_call)


def location_of(call: SystemCall, num_before: int, root: Path) -> FaultLocation:
    paths = (common_name(path.replace(str(root), ".")) for path in call.paths)
    return FaultLocation(num_before, call.name, tuple(paths))


def other_processes(calls: Iterable[SystemCall]) -> set[int]:
    """Processes, not threads, that were started. They may appear before their fork has returned."""
    return {
        call.result
        for call in calls
        if call.name in FORKS and not any("CLONE_FILES" in arg for arg in call.args)
    }


@dataclass
class Interpreter:
    """Follows the descriptors of a process and the names below the folder."""

    initial: Tree
    root: Path
    other_processes: set[int]
    points: list[CrashPoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.root.resolve()
        self.file_system = ModelFileSystem(self.initial)
        self.open_files: dict[int, OpenFile] = {}

    def handle(self, call: SystemCall) -> None:
        if call.result < 0 or call.name in FORKS:
            return
        if call.thread in self.other_processes:
            self.check_other_process(call)
        elif call.name in READS:
            self.advance(call)
        elif call.name in DESCRIPTORS:
            self.follow_descriptor(call)
        elif call.name in UNSEEN:
            self.check_unseen(call)
        elif call.name in FOLDERS:
            raise LogError(f"{call.name}: the working directory must not change")
        else:
            self.add_change(call)

    def add_change(self, call: SystemCall) -> None:
        handler = getattr(self, f"on_{HANDLERS.get(call.name, call.name)}")
        end = self.file_size(call) if call.name in WRITES else None
        operation: Operation | None = handler(call)
        if operation is None:
            return
        is_append = isinstance(operation, Write) and operation.offset == end != 0
        label = self.describe(call, operation)
        self.points.append(CrashPoint(operation, call, label, is_append))
        self.file_system.apply(operation)

    # -- names

    def below(self, path: str, folder: str | None = None) -> str | None:
        """The path relative to the root; None outside of it."""
        absolute = os.path.normpath(os.path.join(folder or self.root, path))
        root = str(self.root)
        if absolute == root:
            return ""
        return absolute.removeprefix(f"{root}/") if absolute.startswith(f"{root}/") else None

    def path_at(self, call: SystemCall, index: int) -> str | None:
        """A path argument that follows the descriptor of its folder."""
        return self.below(call.text(index + 1), call.descriptor(index).path)

    def new_node(self) -> int:
        return len(self.file_system.nodes)

    def describe(self, call: SystemCall, operation: Operation) -> str:
        match operation:
            case Write(_, offset, data):
                path = self.below(call.descriptor(0).path)
                return f"{call.name} {path} {len(data)} bytes at {offset}"
            case Rename(old, new):
                return f"{call.name} {old} -> {new}"
            case Create(path) | MakeFolder(path) | MakeSymlink(path) | Remove(path) | Link(path):
                return f"{call.name} {path}"
            case SyncAll():
                return call.name
            case _ if call.name in ("open", "openat", "creat", "truncate"):
                return f"{call.name} {call.text(1 if call.name == 'openat' else 0)}"
            case _:
                return f"{call.name} {self.below(call.descriptor(0).path) or '.'}"

    # -- descriptors

    def open_file(self, call: SystemCall, index: int = 0) -> OpenFile | None:
        """The file of a descriptor below the folder. strace's path is the independent check."""
        descriptor = call.descriptor(index)
        assert descriptor.number is not None
        file = self.open_files.get(descriptor.number)
        is_below = self.below(descriptor.path) is not None and descriptor.path.startswith("/")
        if (file is not None) != is_below:
            raise LogError(f"{call.name}: descriptor {descriptor} was not followed from its open")
        return file

    def file_size(self, call: SystemCall) -> int | None:
        target = 2 if call.name == "copy_file_range" else 0
        file = self.open_file(call, target)
        return None if file is None else len(self.file_system.file(file.node).current)

    def advance(self, call: SystemCall) -> None:
        """A read moves the offset. Its arguments are raw, so that its data is not logged."""
        file = self.open_files.get(int(call.args[0], 0))
        if file is not None:
            file.offset += call.result

    def follow_descriptor(self, call: SystemCall) -> None:
        if call.name == "close_range":
            first, last = call.number(0), call.number(1)
            for number in [n for n in self.open_files if first <= n <= last]:
                del self.open_files[number]
            return
        number = call.descriptor(0).number
        file = self.open_files.get(-1 if number is None else number)
        if call.name == "close":
            self.open_files.pop(-1 if number is None else number, None)
        elif call.name == "lseek":
            if file is not None:
                file.offset = call.result
        elif call.name != "fcntl" or call.args[1].startswith("F_DUPFD"):
            self.open_files.pop(call.result, None)
            if file is not None:
                self.open_files[call.result] = file

    # -- calls whose effect is not in the log

    def check_unseen(self, call: SystemCall) -> None:
        if call.name == "mmap":
            is_shared = "MAP_SHARED" in call.args[3] and "PROT_WRITE" in call.args[2]
            path = call.descriptor(4).path
            is_below = is_shared and path != "" and self.below(path) is not None
        elif call.name == "openat2":
            is_below = self.path_at(call, 0) is not None
        elif call.name == "splice":
            is_below = self.open_file(call, 2) is not None
        else:
            is_below = True
        if is_below:
            raise LogError(f"{call.name}({', '.join(call.args)[:200]}) changes files unseen")

    def check_other_process(self, call: SystemCall) -> None:
        """Another process may do anything but change the folder."""
        if call.name not in CHANGES or "O_RDONLY" in " ".join(call.args):
            return
        encoded = "".join(f"\\x{byte:02x}" for byte in str(self.root).encode())
        if any(encoded in arg for arg in call.args):
            raise LogError(f"{call.name}: a second process, {call.thread}, changes the folder")

    # -- changes

    def on_openat(self, call: SystemCall) -> Operation | None:
        return self.opened(call, self.path_at(call, 0), call.flags(2))

    def on_open(self, call: SystemCall) -> Operation | None:
        return self.opened(call, self.below(call.text(0)), call.flags(1))

    def on_creat(self, call: SystemCall) -> Operation | None:
        return self.opened(call, self.below(call.text(0)), {"O_CREAT", "O_TRUNC"})

    def opened(self, call: SystemCall, path: str | None, flags: set[str]) -> Operation | None:
        self.open_files.pop(call.result, None)
        if path is None:
            return None
        if "O_TMPFILE" in flags:
            raise LogError(f"{call.name}: O_TMPFILE is not supported")
        is_new = not self.file_system.exists(path)
        if is_new and "O_CREAT" not in flags:
            raise LogError(f"{call.name}: {path} was opened, but the log never created it")
        node = self.new_node() if is_new else self.file_system.find(path)
        self.open_files[call.result] = OpenFile(node, 0, "O_APPEND" in flags)
        if is_new:
            return Create(path, node)
        if "O_TRUNC" in flags:
            return Truncate(node, 0)
        return NoChange() if "O_CREAT" in flags else None

    def written(self, call: SystemCall, data: bytes, offset: int | None = None) -> Write | None:
        """The part of the data that was written, at an offset or at the descriptor's."""
        file = self.open_file(call)
        if file is None:
            return None
        data = data[: call.result]
        if file.is_append:
            file.offset = len(self.file_system.file(file.node).current)
        start = file.offset if offset is None or file.is_append else offset
        if offset is None:
            file.offset = start + len(data)
        return Write(file.node, start, data)

    def on_write(self, call: SystemCall) -> Operation | None:
        if self.open_file(call) is None:
            return None
        return self.written(call, call.data(1))

    def on_pwrite64(self, call: SystemCall) -> Operation | None:
        if self.open_file(call) is None:
            return None
        return self.written(call, call.data(1), call.number(3))

    def on_writev(self, call: SystemCall) -> Operation | None:
        if self.open_file(call) is None:
            return None
        return self.written(call, call.vector(1))

    def on_pwritev(self, call: SystemCall) -> Operation | None:
        if self.open_file(call) is None:
            return None
        offset = call.number(3)
        return self.written(call, call.vector(1), None if offset == -1 else offset)

    def on_copy(self, call: SystemCall) -> Operation | None:
        """sendfile and copy_file_range: the log does not show the data."""
        target = 2 if call.name == "copy_file_range" else 0
        if self.open_file(call, target) is None:
            return None
        raise LogError(f"{call.name} into the folder: its data is not in the log")

    def on_ftruncate(self, call: SystemCall) -> Operation | None:
        file = self.open_file(call)
        return None if file is None else Truncate(file.node, call.number(1))

    def on_truncate(self, call: SystemCall) -> Operation | None:
        path = self.below(call.text(0))
        return None if path is None else Truncate(self.file_system.find(path), call.number(1))

    def on_fallocate(self, call: SystemCall) -> Operation | None:
        file = self.open_file(call)
        if file is None:
            return None
        if call.args[1] not in ("0", "FALLOC_FL_KEEP_SIZE"):
            raise LogError(f"fallocate with {call.args[1]} is not supported")
        size = len(self.file_system.file(file.node).current)
        end = call.number(2) + call.number(3)
        is_kept = call.args[1] != "0" or end <= size
        return NoChange() if is_kept else Truncate(file.node, end)

    def on_sync_one(self, call: SystemCall) -> Operation | None:
        """fsync and fdatasync of a file or a folder."""
        file = self.open_file(call)
        return None if file is None else Sync(file.node)

    def on_sync_file_range(self, call: SystemCall) -> Operation | None:
        return None if self.open_file(call) is None else NoChange()

    def on_sync_all(self, call: SystemCall) -> Operation:
        return SyncAll()

    def on_rename(self, call: SystemCall) -> Operation | None:
        return self.renamed(call, self.below(call.text(0)), self.below(call.text(1)))

    def on_renameat(self, call: SystemCall) -> Operation | None:
        return self.renamed(call, self.path_at(call, 0), self.path_at(call, 2))

    def renamed(self, call: SystemCall, old: str | None, new: str | None) -> Operation | None:
        if old is None and new is None:
            return None
        if old is None or new is None:
            raise LogError(f"{call.name}: a rename into the folder or out of it is not supported")
        return Rename(old, new, "RENAME_EXCHANGE" in call.flags(4))

    def on_unlink(self, call: SystemCall) -> Operation | None:
        path = self.below(call.text(0))
        return None if path is None else Remove(path)

    def on_unlinkat(self, call: SystemCall) -> Operation | None:
        path = self.path_at(call, 0)
        return None if path is None else Remove(path)

    def on_mkdir(self, call: SystemCall) -> Operation | None:
        path = self.below(call.text(0))
        return None if path is None else MakeFolder(path, self.new_node())

    def on_mkdirat(self, call: SystemCall) -> Operation | None:
        path = self.path_at(call, 0)
        return None if path is None else MakeFolder(path, self.new_node())

    def on_link(self, call: SystemCall) -> Operation | None:
        return self.linked(self.below(call.text(0)), self.below(call.text(1)))

    def on_linkat(self, call: SystemCall) -> Operation | None:
        return self.linked(self.path_at(call, 0), self.path_at(call, 2))

    def linked(self, old: str | None, new: str | None) -> Operation | None:
        if new is None:
            return None
        if old is None:
            raise LogError("a link to a file outside of the folder is not supported")
        return Link(new, self.file_system.find(old))

    def on_symlink(self, call: SystemCall) -> Operation | None:
        path = self.below(call.text(1))
        return None if path is None else MakeSymlink(path, self.new_node(), call.text(0))

    def on_symlinkat(self, call: SystemCall) -> Operation | None:
        path = self.path_at(call, 1)
        return None if path is None else MakeSymlink(path, self.new_node(), call.text(0))


HANDLERS = {
    "pwritev2": "pwritev",
    "copy_file_range": "copy",
    "sendfile": "copy",
    "fsync": "sync_one",
    "fdatasync": "sync_one",
    "sync": "sync_all",
    "syncfs": "sync_all",
    "renameat2": "renameat",
    "rmdir": "unlink",
}
"""Calls that are interpreted like another."""
