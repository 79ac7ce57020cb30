"""What a client receives, checked strictly against the types of its own package.

    received = Received({"/v1/chat/completions": (ChatCompletion, ChatCompletionChunk)})
    client = OpenAI(http_client=httpx.Client(event_hooks={"response": [received.record]}))
    ...
    received.check()

A client converts what it receives without complaint; the bytes themselves are validated here, in
strict mode: a required field that is missing or a number as a string is an error. Types that keep
unknown fields must give back what was received.
"""

from __future__ import annotations

import importlib
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

Types = Mapping[str, tuple[Any, Any]]
"""Path -> type of a whole response, and of a part of a streamed one."""


class Received:
    """The responses of one client, in order."""

    def __init__(self, types: Types, is_complete: bool = True) -> None:
        """is_complete: the types keep unknown fields."""
        self.types, self.is_complete = types, is_complete
        self.responses: list[tuple[str, int, str, list[bytes]]] = []

    def record(self, response: Any) -> None:
        """A hook of httpx: copy the bytes of a response as they are read."""
        kind = response.headers.get("content-type", "").split(";")[0]
        parts: list[bytes] = []
        self.responses.append((response.request.url.path, response.status_code, kind, parts))
        response.stream = copied(response, parts.append)

    def check(self) -> dict[str, int]:
        """Validate everything. Returns the number of values for each path."""
        counts: dict[str, int] = {}
        for path, status, kind, parts in self.responses:
            if status != 200:
                continue
            for value, is_part in values_of(kind, b"".join(parts)):
                self.validate(path, value, is_part)
                counts[path] = counts.get(path, 0) + 1
        return counts

    def validate(self, path: str, value: Any, is_part: bool) -> None:
        name = path if path in self.types else path.rsplit("/", 1)[0] + "/*"
        adapter = TypeAdapter(variant(self.types[name][is_part], value))
        typed = adapter.validate_json(json.dumps(value), strict=True)
        if self.is_complete:
            dumped = adapter.dump_python(typed, mode="json", exclude_unset=True, by_alias=True)
            assert dumped == value, f"{path}: {dumped} is not {value}"


def copied(response: Any, keep: Callable[[bytes], None]) -> Any:
    """The stream of a response, of the library that made it: httpx or httpx2."""
    library = importlib.import_module(type(response).__module__.split(".")[0])
    stream = response.stream

    class CopiedStream(library.SyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            for part in stream:
                keep(part)
                yield part

        def close(self) -> None:
            stream.close()

    return CopiedStream()


def values_of(kind: str, data: bytes) -> Iterator[tuple[Any, bool]]:
    """The JSON values of a response, and whether they are parts of a stream."""
    if kind == "application/json":
        yield json.loads(data), False
    elif kind == "application/x-ndjson":
        for line in data.splitlines():
            yield json.loads(line), True
    else:
        assert kind == "text/event-stream", kind
        yield from ((value, True) for value in events(data.decode("utf-8")))


def events(text: str) -> Iterator[Any]:
    """The values of server-sent events; comments, pings and [DONE] are left out."""
    assert text.endswith("\n\n"), f"the stream ends with {text[-40:]!r}"
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields.get("data", "[DONE]") == "[DONE]":
            continue
        value = json.loads(fields["data"])
        assert fields.get("event", value.get("type")) == value.get("type"), block
        if value.get("type") != "ping":  # SDKs skip them
            yield value


def variant(kind: Any, value: Any) -> Any:
    """The member of a union of events that a value claims to be."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    members = typing.get_args(kind)
    if not members:
        return kind
    for member in members:
        if value["type"] in typing.get_args(member.model_fields["type"].annotation):
            return member
    raise AssertionError(f"{value['type']} is not an event of this client")


def report(received: Received, checked: list[str]) -> None:
    """Validate what was received, and print what the client did."""
    counts = received.check()
    print(json.dumps({"checked": checked, "received": counts}))
