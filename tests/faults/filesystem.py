"""A model of a file system that loses what was not synced: operations -> the tree after a crash.

Every file has three contents and every folder two sets of entries:

    file.current      what a process reads now
    file.journaled    the last synced content, with later truncations but without later writes
    file.synced       the content at the last fsync or fdatasync of the file; empty before the first
    folder.current    names -> nodes, what a process sees now
    folder.synced     names -> nodes at the last fsync of the folder; empty before the first

What a crash leaves depends on the loss model:

    loss        entries    contents    what it finds
    KILL        current    current     operations in an order that recovery cannot handle
    DATA        current    journaled   a file renamed or marked as complete before its fsync
    ALL         synced     synced      a folder without fsync: its renames, creations and removals
                                       since then are undone, while other folders keep theirs

Contracts that are assumed, which ext4, XFS and btrfs keep and POSIX leaves open:

- fsync of a file makes its content and length durable, but not its name: for that the folder must
  be synced. A new folder is lost with all it contains until its parent folder is synced.
- A rename is atomic. One that moves a name between two folders becomes durable in both of them when
  either is synced.
- sync_file_range makes nothing durable; syncfs and sync make everything durable.
- A write is not atomic: `Write.torn` is its first half. (Kernels tear at a page; half is a point in
  between that needs no knowledge of the page size.)

Names of nodes are numbers, so that a file which was renamed or unlinked keeps its content for
whoever has it open, and an undone unlink or rename finds it again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath

Tree = dict[str, bytes | str | None]
"""Relative path -> content of a file, target of a symbolic link, or None for a folder."""
ROOT = 0
MIN_TORN = 4096
"""Shorter writes have no point in their middle, unless they append to a file with content."""


class Loss(Enum):
    """What is lost in a crash besides the process."""

    KILL = "kill"
    DATA = "data"
    ALL = "all"


@dataclass(frozen=True)
class Create:
    """A new empty file."""

    path: str
    node: int


@dataclass(frozen=True)
class MakeFolder:
    path: str
    node: int


@dataclass(frozen=True)
class MakeSymlink:
    path: str
    node: int
    target: str


@dataclass(frozen=True)
class Link:
    """A second name of a file."""

    path: str
    node: int


@dataclass(frozen=True)
class Write:
    node: int
    offset: int
    data: bytes

    @property
    def torn(self) -> Write:
        return Write(self.node, self.offset, self.data[: len(self.data) // 2])


@dataclass(frozen=True)
class Truncate:
    node: int
    size: int


@dataclass(frozen=True)
class Sync:
    """fsync or fdatasync of a file, fsync of a folder."""

    node: int


@dataclass(frozen=True)
class SyncAll:
    """sync and syncfs."""


@dataclass(frozen=True)
class Rename:
    old: str
    new: str
    is_exchange: bool = False


@dataclass(frozen=True)
class Remove:
    """unlink and rmdir."""

    path: str


@dataclass(frozen=True)
class NoChange:
    """A call that a process may be killed at and that changes nothing here, such as opening an
    existing file with O_CREAT."""


Operation = (
    Create
    | MakeFolder
    | MakeSymlink
    | Link
    | Write
    | Truncate
    | Sync
    | SyncAll
    | Rename
    | Remove
    | NoChange
)


@dataclass
class FileNode:
    current: bytes = b""
    journaled: bytes = b""
    synced: bytes = b""

    def write(self, offset: int, data: bytes) -> None:
        padded = self.current.ljust(offset, b"\0")
        self.current = padded[:offset] + data + padded[offset + len(data) :]

    def truncate(self, size: int) -> None:
        self.current = self.current[:size].ljust(size, b"\0")
        self.journaled = self.journaled[:size]

    def sync(self) -> None:
        self.journaled = self.synced = self.current


@dataclass
class FolderNode:
    current: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    peers: set[int] = field(default_factory=set)
    """Folders that share an unsynced rename with this one."""


@dataclass
class SymlinkNode:
    target: str


class ModelFileSystem:
    """The folder under test and everything below it, as of the operations applied so far."""

    def __init__(self, tree: Tree) -> None:
        """The given tree, all of it synced."""
        self.nodes: dict[int, FileNode | FolderNode | SymlinkNode] = {ROOT: FolderNode()}
        for path, content in sorted(tree.items()):
            number = len(self.nodes)
            if content is None:
                self.apply(MakeFolder(path, number))
            elif isinstance(content, str):
                self.apply(MakeSymlink(path, number, content))
            else:
                self.apply(Create(path, number))
                self.apply(Write(number, 0, content))
        self.apply(SyncAll())

    def apply(self, operation: Operation) -> None:
        match operation:
            case Create(path, node):
                self.add(path, node, FileNode())
            case MakeFolder(path, node):
                self.add(path, node, FolderNode())
            case MakeSymlink(path, node, target):
                self.add(path, node, SymlinkNode(target))
            case Link(path, node):
                self.add(path, node, self.nodes[node])
            case Write(node, offset, data):
                self.file(node).write(offset, data)
            case Truncate(node, size):
                self.file(node).truncate(size)
            case Sync(node):
                self.sync(node)
            case SyncAll():
                for node in self.nodes:
                    self.sync(node)
            case Rename():
                self.rename(operation)
            case Remove(path):
                folder, name = self.entry(path)
                del folder.current[name]

    def add(self, path: str, number: int, node: FileNode | FolderNode | SymlinkNode) -> None:
        folder, name = self.entry(path)
        assert name not in folder.current, f"{path} is created twice"
        self.nodes[number] = node
        folder.current[name] = number

    def sync(self, number: int) -> None:
        node = self.nodes[number]
        if isinstance(node, FileNode):
            node.sync()
        elif isinstance(node, FolderNode):
            node.synced = dict(node.current)
            peers, node.peers = node.peers, set()
            for peer in peers:
                self.sync(peer)

    def rename(self, rename: Rename) -> None:
        source, old = self.entry(rename.old)
        target, new = self.entry(rename.new)
        moved = source.current[old]
        if rename.is_exchange:
            source.current[old] = target.current[new]
        elif target.current.get(new) == moved:
            return  # two names of one file: rename(2) does nothing
        else:
            del source.current[old]
        target.current[new] = moved
        if source is not target:
            source.peers.add(self.find(parent(rename.new)))
            target.peers.add(self.find(parent(rename.old)))

    def file(self, number: int) -> FileNode:
        node = self.nodes[number]
        assert isinstance(node, FileNode), f"node {number} is not a file"
        return node

    def entry(self, path: str) -> tuple[FolderNode, str]:
        """The folder of a path, and its name there."""
        folder = self.nodes[self.find(parent(path))]
        assert isinstance(folder, FolderNode), f"the parent of {path} is not a folder"
        return folder, PurePosixPath(path).name

    def find(self, path: str) -> int:
        """The node that a path names now; KeyError if there is none."""
        number = ROOT
        for name in PurePosixPath(path).parts:
            folder = self.nodes[number]
            if not isinstance(folder, FolderNode):
                raise KeyError(path)
            number = folder.current[name]
        return number

    def exists(self, path: str) -> bool:
        try:
            self.find(path)
        except KeyError:
            return False
        return True

    def tree(self, loss: Loss = Loss.KILL) -> Tree:
        """What is found after a crash now."""
        tree: Tree = {}
        self.collect(ROOT, "", loss, tree)
        return tree

    def collect(self, number: int, prefix: str, loss: Loss, tree: Tree) -> None:
        folder = self.nodes[number]
        assert isinstance(folder, FolderNode)
        for name, child in (folder.synced if loss is Loss.ALL else folder.current).items():
            node, path = self.nodes[child], f"{prefix}{name}"
            if isinstance(node, FolderNode):
                tree[path] = None
                self.collect(child, f"{path}/", loss, tree)
            elif isinstance(node, SymlinkNode):
                tree[path] = node.target
            else:
                tree[path] = {
                    Loss.KILL: node.current,
                    Loss.DATA: node.journaled,
                    Loss.ALL: node.synced,
                }[loss]


def parent(path: str) -> str:
    folder = PurePosixPath(path).parent.as_posix()
    return "" if folder == "." else folder


def replay(initial: Tree, operations: Iterable[Operation]) -> ModelFileSystem:
    file_system = ModelFileSystem(initial)
    for operation in operations:
        file_system.apply(operation)
    return file_system


def read_tree(root: Path) -> Tree:
    """The files, folders and symbolic links below a folder of the real file system."""
    tree: Tree = {}
    for folder, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(folder, name)
            if path.is_symlink():
                content: bytes | str | None = os.readlink(path)
            else:
                content = path.read_bytes() if path.is_file() else None
            tree[path.relative_to(root).as_posix()] = content
    return tree


def write_tree(root: Path, tree: Tree) -> None:
    """Create the tree in an empty folder. Two names of one file become two files."""
    for path, content in sorted(tree.items()):
        if content is None:
            (root / path).mkdir()
        elif isinstance(content, str):
            (root / path).symlink_to(content)
        else:
            (root / path).write_bytes(content)


def hash_tree(tree: Tree) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path, content in sorted(tree.items()):
        data = content if isinstance(content, bytes) else repr(content).encode()
        digest.update(f"{path}\0{type(content).__name__}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
