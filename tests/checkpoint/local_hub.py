"""A Hugging Face hub on this machine: the routes that `weft pull` calls, over HTTP."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
INFO = re.compile(r"/api/models/([\w-]+/[\w-]+)(?:/revision/([\w.-]+))?(?:\?.*)?")
RESOLVE = re.compile(r"/([\w-]+/[\w-]+)/resolve/([0-9a-f]+)/(.+)")


class LocalHub:
    """One repository, org/model, whose files and faults a test sets."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.revisions = {"main": COMMIT, COMMIT: COMMIT}
        self.requests: list[tuple[str, str | None]] = []
        """(file, Range) of each download."""
        self.cut_after: int | None = None
        """The connection ends after so many bytes of a file."""
        self.hold_after: int | None = None
        """A download pauses after so many bytes, until `resume` is set or the client is gone."""
        self.resume = threading.Event()
        self.answers_ranges = True
        self.is_corrupt = False
        self.url = ""

    def info(self, revision: str) -> bytes:
        siblings = []
        for name, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            one = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(one)
        commit = self.revisions[revision]
        return json.dumps({"id": "org/model", "sha": commit, "siblings": siblings}).encode()

    @contextmanager
    def serving(self) -> Iterator[LocalHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def handler_of(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class HubHandler(BaseHTTPRequestHandler):
        def log_message(self, *args) -> None:
            """Nothing is printed."""

        def do_GET(self) -> None:
            info, file = INFO.fullmatch(self.path), RESOLVE.fullmatch(self.path)
            if info and info[1] == "org/model" and (info[2] or "main") in hub.revisions:
                self.answer(200, hub.info(info[2] or "main"))
            elif info:
                self.send_response(404)
                missing = "RevisionNotFound" if info[1] == "org/model" else "RepoNotFound"
                self.send_header("X-Error-Code", missing)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif file:
                self.send_file(file[3])
            else:
                self.send_error(404)

        def send_file(self, name: str) -> None:
            wanted = self.headers["Range"]
            hub.requests.append((name, wanted))
            content = hub.files[name]
            if hub.is_corrupt:
                content = bytes(reversed(content))
            if wanted is None or not hub.answers_ranges:
                self.answer(200, content)
                return
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.answer(206, content[begin:])

        def answer(self, code: int, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.path.startswith("/api"):
                self.wfile.write(content)
                return
            self.wfile.write(content[: hub.hold_after][: hub.cut_after])
            if hub.hold_after is not None and len(content) > hub.hold_after:
                self.wfile.flush()
                hub.resume.wait(100)
                with suppress(OSError):  # the client is gone
                    self.wfile.write(content[hub.hold_after :])

    return HubHandler
