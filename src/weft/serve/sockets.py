"""Listening sockets, who holds a port that is taken, and messages to the service manager.

open_sockets(config)            bound sockets for uvicorn; a UsageError if that is impossible
url_of(config, sockets)         http://127.0.0.1:8000
notify("READY=1")               systemd's sd_notify protocol, if NOTIFY_SOCKET is set
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from weft.core.errors import UsageError
from weft.serve.config import ServeConfig

PROC = Path("/proc")
LISTEN = "0A"
"""The state of listening sockets in /proc/net/tcp."""


def open_sockets(config: ServeConfig) -> list[socket.socket]:
    """The sockets to listen on: one, or for a host name one for each of its addresses."""
    if config.uds is not None:
        return [unix_socket(Path(config.uds))]
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"host is '{config.host}': {error.strerror or error}. Use an address of this machine, "
            "such as 127.0.0.1 or 0.0.0.0."
        ) from None
    addresses = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
    return [tcp_socket(config, *address) for address in addresses[: 1 if not config.port else None]]


def tcp_socket(config: ServeConfig, family: int, address: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        one.bind(address)
        one.listen(2048)  # before that, another process could bind the same port
    except OSError as error:
        one.close()
        if error.errno != errno.EADDRINUSE:
            raise UsageError(
                f"cannot listen on {config.host} port {config.port}: {error.strerror}. Use another "
                "--host or --port."
            ) from None
        raise UsageError(
            f"port {config.port} is in use by {port_holder(config.port)}. Stop it, or use another "
            "port with --port."
        ) from None
    return one


def unix_socket(path: Path) -> socket.socket:
    """A socket at a path. The file that a dead server has left is replaced."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode) or is_answered(path):
            raise UsageError(
                f"uds is '{path}': a file or a running server is there. Use another path."
            )
        path.unlink()
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(str(path))
        one.listen(2048)
    except OSError as error:
        one.close()
        raise UsageError(
            f"uds is '{path}': {error.strerror or error}. Use a path of at most 100 characters in "
            "a folder that exists."
        ) from None
    return one


class SocketFile:
    """The file of the Unix socket that this process listens on; none for a port."""

    def __init__(self, uds: str | None) -> None:
        self.path = None if uds is None else Path(uds)
        self.inode = None if self.path is None else self.path.stat().st_ino

    def remove(self) -> None:
        """Delete the file unless another server has replaced it."""
        with suppress(OSError):
            if self.path is not None and self.path.stat().st_ino == self.inode:
                self.path.unlink()


def is_answered(path: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def url_of(config: ServeConfig, sockets: Sequence[socket.socket]) -> str:
    """The address to print and to use."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    scheme = "http" if config.tls_cert is None else "https"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{sockets[0].getsockname()[1]}"


def port_holder(port: int, proc: Path = PROC) -> str:
    """The process that listens on a port, if /proc tells: 'python (process 41)'."""
    links = {f"socket:[{inode}]" for inode in listening_inodes(port, proc)}
    for folder in proc.glob("[0-9]*") if links else ():
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(os.readlink(one) in links for one in (folder / "fd").iterdir()):
                name = (folder / "comm").read_text().strip()
                return f"{name} (process {folder.name})"
    return "another process"


def listening_inodes(port: int, proc: Path) -> list[str]:
    """Inode numbers of the sockets that listen on a TCP port."""
    inodes = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                is_port = int(fields[1].rpartition(":")[2], 16) == port
                if is_port and fields[3] == LISTEN:
                    inodes.append(fields[9])
    return inodes


def notify(message: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send a message to the service manager; without one nothing happens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.connect(address)
        one.sendall(message.encode())
