"""The web page as an ASGI application: `GET /` and the files below /assets/.

    app = PageApp()                 the files of weft/look/page, read from the installed package

Needs neither torch nor a web framework, so that the page can be served while models are loaded.
Answers have an ETag, and gzip for clients that accept it; the page itself has a content security
policy that allows nothing from other hosts, no inline code and no frames around it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from weft.look.modules import compact, split_scripts

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

INDEX = "index.html"
ENTRY = "app.js"
PREFIX = "/assets/"
MIME_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
"""Kinds of files that are part of the page; others are not served."""
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # ask each time; the answer is mostly 304
    "vary": "accept, accept-encoding",
}


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    name: str
    """Its path below the folder of the page: `strings/shell.json`."""
    content: bytes

    @property
    def media_type(self) -> str:
        return MIME_TYPES[suffix_of(self.name)]

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, 9, mtime=0)


def page_assets() -> dict[str, Asset]:
    """The files of the page by name, as they are sent: app.js has the modules of the shell, and
    those of a view are in one script that is loaded when the view is first opened."""
    sources = page_sources()
    modules = {name: text for name, text in sources.items() if suffix_of(name) == ".js"}
    sent = {**sources, **split_scripts(ENTRY, modules)}
    return {name: Asset(name, as_sent(name, text).encode()) for name, text in sent.items()}


def as_sent(name: str, text: str) -> str:
    if suffix_of(name) == ".json":
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    return compact(name, text) if suffix_of(name) in (".js", ".css") else text


def page_sources() -> dict[str, str]:
    """The files of the page by name, as they are written."""
    return {name: content.decode() for name, content in walk(files("weft.look") / "page", "")}


def walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    """Name and content of each served file below a folder, sorted."""
    pairs = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            pairs += walk(entry, f"{prefix}{entry.name}/")
        elif suffix_of(entry.name) in MIME_TYPES:
            pairs.append((prefix + entry.name, entry.read_bytes()))
    return pairs


def suffix_of(name: str) -> str:
    dot = name.rfind(".")
    return "" if dot < 0 else name[dot:]


class PageApp:
    """Answers `/` with the page and `/assets/NAME` with its files, to GET and HEAD."""

    def __init__(self, assets: Mapping[str, Asset] | None = None) -> None:
        self.assets = page_assets() if assets is None else assets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asset, method = self.asset_of(scope["path"]), scope["method"]
        if asset is None:
            await respond(send, 404, {"content-type": "text/plain"}, b"There is no such file.\n")
        elif method not in ("GET", "HEAD"):
            await respond(send, 405, {"allow": "GET, HEAD", "content-type": "text/plain"})
        else:
            status, headers, body = answer(asset, request_headers(scope))
            await respond(send, status, headers, body, is_head=method == "HEAD")

    def asset_of(self, path: str) -> Asset | None:
        if path == "/":
            return self.assets[INDEX]
        return self.assets.get(path[len(PREFIX) :]) if path.startswith(PREFIX) else None


def request_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def answer(asset: Asset, sent: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body: 304 if the client has this version."""
    headers = {**HEADERS, "content-type": asset.media_type, "etag": asset.etag}
    known = [tag.strip().removeprefix("W/") for tag in sent.get("if-none-match", "").split(",")]
    if asset.etag in known:
        return 304, headers, b""
    if accepts_gzip(sent.get("accept-encoding", "")):
        return 200, {**headers, "content-encoding": "gzip"}, asset.compressed
    return 200, headers, asset.content


def accepts_gzip(header: str) -> bool:
    """Whether `gzip` is in Accept-Encoding, and not with a quality of 0."""
    for part in header.lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


async def respond(
    send: Send, status: int, headers: Mapping[str, str], body: bytes = b"", is_head: bool = False
) -> None:
    """Send a whole response."""
    lines = dict(headers) if status == 304 else {**headers, "content-length": str(len(body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if is_head else body})
