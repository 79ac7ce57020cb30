"""Random malformed HTTP requests: a valid request -> edits of its JSON, its bytes and its frame.

    case = random_case(random.Random(seed))
    case.parts          what the client sends; the server gets the parts one by one
    case.is_whole       whether the server must answer without the end of the connection

The valid requests are those of http_requests.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.soak.http_requests import LONG_TEXT, MAX_BODY, field_names, valid_requests


class Raw(str):
    """JSON text that stands for a value; it may be invalid."""


def nested(depth: int) -> Raw:
    return Raw("[" * depth + "]" * depth)


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 20, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**53 + 1, 2**63),
    *(-(2**63) - 1, 2**64, "", " ", "a", "0", "1e5", "auto", "required", "none", "null", "\x00"),
    *("\ud800", "\udfff\ud800", "\uffff", "\U0001f31e\u200d", "a" * 5000, [], {}, [None], [[]]),
    *([0], [-1], ["a"], [1.5, "a"], [True, None], {"": 0}, {"a": {"a": {}}}, [[5, 6], ["a"]]),
    *({"type": "object"}, {"type": "text"}, {"type": "text", "text": 5}, {"role": "user"}),
    *({"type": "function"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": 5}),
    *({"$ref": "#"}, {"type": "object", "properties": 5}, {"enum": []}, {"pattern": "("}),
    *({"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/x"}}},),
    *(
        {"type": "json_schema", "schema": {"type": "array", "minItems": 10**9}},
        {"regex": "a{99999}"},
    ),
    *({"regex": "("}, {"grammar": "start: a"}, {"choice": []}, {"json": "{"}, {"json": {"a": 1}}),
    *(
        {"name": "a", "parameters": {"type": "string"}},
        {"function": None},
        {"function": {"name": 5}},
    ),
    *(
        Raw("NaN"),
        Raw("-Infinity"),
        Raw("1e999"),
        Raw("-1e999"),
        Raw("1" * 400),
        Raw("-0"),
        Raw("01"),
    ),
    *(
        Raw("1." + "3" * 400),
        Raw("0x10"),
        Raw("'a'"),
        Raw("undefined"),
        Raw('"\\x"'),
        Raw('"\\ud8"'),
    ),
    *(Raw('"\\ud83d"'), Raw('"\n"'), Raw('"a'), Raw("{"), Raw("]"), Raw("[1,]"), Raw('{"a":1,}')),
    *(Raw('{"a":1,"a":[]}'), Raw("{1:2}"), Raw("tru"), Raw(""), Raw("/**/1"), Raw('"\\u0000"')),
    *(nested(100), nested(1000), nested(60_000), Raw('{"a":' * 500 + "1" + "}" * 500)),
]


def dump(value: Any) -> str:
    """JSON text, with the texts of `Raw` as they are; lone surrogates are escaped."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{dump(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


@dataclass
class RawRequest:
    """A request before it is sent."""

    method: str
    path: str
    value: Any
    """The body before it is JSON; None: no body."""
    version: str = "HTTP/1.1"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def bytes(self) -> bytes:
        lines = [f"{self.method} {self.path} {self.version}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + self.body

    def set_header(self, name: str, *values: str) -> None:
        """Replace the headers of a name; without values they are removed."""
        self.headers = [one for one in self.headers if one[0] != name]
        self.headers += [(name, value) for value in values]


@dataclass(frozen=True)
class HttpCase:
    """What a client sends."""

    parts: tuple[bytes, ...]
    is_whole: bool
    """The server must answer and close; otherwise the client closes its side at the end."""


def random_case(rng: random.Random) -> HttpCase:
    """A malformed request; rarely one that is valid after all."""
    request = new_request(rng)
    if isinstance(request.value, dict) and rng.random() < 0.75:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            edit_value(request.value, rng)
    request.body = b"" if request.value is None else dump(request.value).encode()
    if rng.random() < 0.2:
        request.body = edit_bytes(request.body, rng)
    request.set_header("Content-Length", str(len(request.body)))
    if rng.random() < 0.25:
        rng.choice(HEADER_EDITS)(request, rng)
    data, is_whole = request.bytes(), True
    if rng.random() < 0.25:
        data, is_whole = rng.choice(FRAME_EDITS)(request, rng), False
    return HttpCase(tuple(split(data, rng)), is_whole)


def new_request(rng: random.Random) -> RawRequest:
    method, path, value = rng.choice(valid_requests())
    if rng.random() < 0.97:
        value = shortened(value)
    headers = [("Host", "127.0.0.1"), ("Connection", "close"), ("Content-Type", "application/json")]
    return RawRequest(method, path, deepcopy(value), headers=headers)


def shortened(value: Any) -> Any:
    """The value with long texts cut, and at most three entries in lists."""
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value[:3]]
    return value[:LONG_TEXT] if isinstance(value, str) else value


def split(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The data in one part, or in several."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 0, 1, 3])))
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        if start < end:
            yield data[start:end]


# --- edits of a JSON value ------------------------------------------------------------------


def containers(value: Any) -> list[Any]:
    """All objects and lists in a value that have entries, itself included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    rest = [one for entry in inner for one in containers(entry)]
    return [value, *rest] if isinstance(value, (dict, list)) and value else rest


def random_value(rng: random.Random) -> Any:
    if rng.random() < 0.1:  # a part of another request
        _, _, other = rng.choice(valid_requests())
        found = containers(other)
        return deepcopy(rng.choice(found)) if found else None
    return deepcopy(rng.choice(VALUES))


def edit_value(value: dict[str, Any], rng: random.Random) -> None:
    """Change one entry of the object, at any depth; the upper ones more often."""
    found = containers(value)
    target = value if not found or rng.random() < 0.5 else rng.choice(found)
    key = (
        rng.choice(list(target) if isinstance(target, dict) else range(len(target)))
        if target
        else ""
    )
    kind = rng.choice(
        ["replace", "replace", "replace", "delete", "add", "add", "duplicate", "wrap"]
    )
    if kind == "add" or not target:
        if isinstance(target, dict):
            target[rng.choice([*field_names(), "x", "", "max_token", "__proto__"])] = random_value(
                rng
            )
        else:
            target.insert(rng.randrange(len(target) + 1), random_value(rng))
    elif kind == "replace":
        target[key] = random_value(rng)
    elif kind == "delete":
        del target[key]
    elif kind == "wrap":
        target[key] = rng.choice([[target[key]], {"a": target[key]}, dump(target[key])])
    else:
        target[key] = Raw(f"{dump(target[key])},{json.dumps(key)}:{dump(random_value(rng))}")


# --- edits of a body's bytes ----------------------------------------------------------------


BAD_TEXT = [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x82"]


def edit_bytes(body: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(body) + 1)
    end = min(len(body), place + rng.choice([1, 2, 10, 100]))
    text = body.decode()
    choices: list[Callable[[], bytes]] = [
        lambda: body[:place],
        lambda: body[place:],
        lambda: body[:place] + body[end:],
        lambda: body[:place] + rng.choice(BAD_TEXT) + body[place:],
        lambda: body[:place] + rng.randbytes(rng.choice([1, 4, 50])) + body[end:],
        lambda: body + rng.choice([b"x", b"{}", b"\x00", b"\n\n[]", b'"']),
        lambda: b"\xef\xbb\xbf" + body,
        lambda: text.encode(rng.choice(["utf-16", "utf-32", "utf-7"])),
        lambda: text.replace('"', "'").encode(),
        lambda: body + b" " * rng.choice([10, 1000, MAX_BODY]),
        lambda: rng.choice([b"", b"null", b"[]", b"5", b'"a"', b"true", b"{", b"NaN"]),
        lambda: b"\x1f\x8b\x08\x00" + body,
        lambda: b"q=a&source=en&target=de" + body[:place],
    ]
    return rng.choice(choices)()


# --- edits of the request line and the headers, which leave the length as it is --------------


METHODS = ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "POST", "PROPFIND"]
PATHS = [
    *("/", "//", "/v1", "/v1/", "/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/..%2f..%2fx"),
    *("/v1/responses/" + "x" * 3000, "/v1/responses/%20?stream=true", "/api/", "/api/pull", "/%"),
    *("/v1/messages/batches", "/translate/", "/v1/chat/completions/", "/assets/..%2f..%2fx", "/ws"),
    *("/v1/models/scripted?" + "a=1&" * 500, "/v1/responses/x/input_items?limit=-1&order=up"),
    *("/v1/responses/x/input_items?limit=1e999&after=%f0%9f", "http://a/v1/models", "/docs/x"),
    *("/languages?api_key=%ff", "/languages?api_key=a&api_key=b", "/v1/models/\u4e2d", "/ready?"),
]
HEADERS = [
    *(("Content-Type", one) for one in ("text/plain", "", "application/json; charset=utf-16")),
    *(("Content-Type", one) for one in ("multipart/form-data", "multipart/form-data; boundary=a")),
    *(("Content-Type", one) for one in ("application/x-www-form-urlencoded", ";;;", "a" * 3000)),
    *(("Content-Type", one) for one in ("multipart/form-data; boundary=\u00e9", "application/xml")),
    *(("Host", one) for one in ("", "a b", "evil.example", "[::1", "127.0.0.1:99999999", "\u00e9")),
    *(("Origin", one) for one in ("http://evil.example", "null", "http://[", "://", "\u00e9")),
    *(("X-Request-Id", one) for one in ("", "a" * 5000, "\u00e9", "a\tb", "%s%n", "{}")),
    *(("X-Request-Timeout", one) for one in ("-1", "nan", "inf", "a", "1e400", "", "9" * 400)),
    *(("Authorization", one) for one in ("", "Bearer", "Bearer ", "Basic AAA=", "Bearer \u00e9")),
    *(("X-Api-Key", one) for one in ("", "\u00e9", "a" * 8000)),
    *(("Accept", one) for one in ("text/html", ";q=", "\u00e9", "*/*;q=nan")),
    *(("Access-Control-Request-Method", one) for one in ("POST", "\u00e9")),
    *(("Content-Encoding", "gzip"), ("Range", "bytes=5-1"), ("Cookie", "a=" + "b" * 9000)),
    *(("Anthropic-Beta", "x,y"), ("Anthropic-Version", ""), ("If-None-Match", "*"), ("TE", "x")),
    *(("X-Forwarded-For", "\u00e9, 1"), ("X-Forwarded-Proto", "javascript"), ("Via", "1.0 a")),
    ("Expect", "nothing"),
]


def set_method(request: RawRequest, rng: random.Random) -> None:
    request.method = rng.choice(METHODS)


def set_path(request: RawRequest, rng: random.Random) -> None:
    request.path = rng.choice(
        [*PATHS, request.path + "/", request.path.upper(), "/v1" + request.path]
    )


def add_headers(request: RawRequest, rng: random.Random) -> None:
    for name, value in rng.sample(HEADERS, rng.choice([1, 1, 2, 4])):
        if rng.random() < 0.8:
            request.set_header(name)
        request.headers.append((name, value))


def drop_header(request: RawRequest, rng: random.Random) -> None:
    request.set_header(rng.choice(["Host", "Content-Type"]))


def add_many_headers(request: RawRequest, rng: random.Random) -> None:
    request.headers += [(f"X-{number}", "a") for number in range(rng.choice([50, 200]))]


def set_chunked(request: RawRequest, rng: random.Random) -> None:
    """A body in chunks, which is valid."""
    size = rng.choice([1, 7, 100, 10_000])
    pieces = [
        request.body[at : at + size] for at in range(0, min(len(request.body), 200 * size), size)
    ]
    request.body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"
    request.set_header("Content-Length")
    request.set_header("Transfer-Encoding", "chunked")


HEADER_EDITS: list[Callable[[RawRequest, random.Random], None]] = [
    *(set_method, set_path, add_headers, add_headers, add_headers, drop_header),
    *(add_many_headers, set_chunked),
]


# --- edits of the frame: the server may wait for more ---------------------------------------


LENGTHS = [
    *(
        "-1",
        "+5",
        "0x10",
        "5.0",
        "",
        " ",
        "a",
        "5, 5",
        "5, 6",
        "1" * 30,
        "99999999",
        "0",
        "1",
        "5 5",
    ),
    *("\u0665", "18446744073709551616", "4294967297", "1e3"),
]
CODINGS = ["chunked, chunked", "gzip, chunked", "chunked, gzip", "identity", "xchunked", " chunked"]
CHUNKS = [
    *(
        b"zz\r\nab\r\n",
        b"-1\r\n",
        b"5\r\nab",
        b"ffffffffffffffffff\r\na",
        b"5;a=b\r\nabcde\r\n0\r\n\r\n",
    ),
    *(b"2\r\nabXX0\r\n\r\n", b"\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\n", b"5\nabcde\n0\n\n", b""),
    *(b"40000\r\n" + b" " * 0x40000 + b"\r\n0\r\n\r\n",),
]
GARBAGE = [
    *(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n" * 9,
    ),
    *(
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"get / http/1.1\r\n\r\n",
        b"\x00" * 50,
    ),
    *(
        b"EHLO a\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n: a\r\n\r\n",
    ),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n", b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", b"{}"),
    *(
        b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
    ),
    *(
        b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"G",
    ),
    *(b"CONNECT a:1 HTTP/1.1\r\n\r\n", b"GET ws://a HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"),
]
UPGRADES = [
    *(
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"Upgrade": "h2c", "Connection": "Upgrade"},
    ),
    *({"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"},),
]


def wrong_length(request: RawRequest, rng: random.Random) -> bytes:
    lengths = rng.sample([*LENGTHS, str(len(request.body))], rng.choice([1, 1, 2]))
    request.set_header("Content-Length", *lengths)
    return request.bytes()


def broken_chunks(request: RawRequest, rng: random.Random) -> bytes:
    set_chunked(request, rng)
    if rng.random() < 0.3:
        request.set_header("Transfer-Encoding", rng.choice(CODINGS))
    if rng.random() < 0.3:
        request.set_header("Content-Length", str(rng.choice([0, 5, len(request.body)])))
    keep = rng.randrange(len(request.body) + 1)
    request.body = request.body[:keep] + rng.choice(CHUNKS)
    return request.bytes()


def cut(request: RawRequest, rng: random.Random) -> bytes:
    data = request.bytes()
    return data[: rng.randrange(1, len(data))]


def flipped(request: RawRequest, rng: random.Random) -> bytes:
    """Other bytes in the head of the request."""
    data = bytearray(request.bytes())
    for _ in range(rng.choice([1, 2, 8])):
        data[rng.randrange(len(data) - len(request.body))] = rng.randrange(256)
    return bytes(data)


def pipelined(request: RawRequest, rng: random.Random) -> bytes:
    """Several requests in one piece, and something else before, between or after them."""
    request.set_header("Connection", "keep-alive")
    pieces = [request.bytes()] * rng.choice([1, 2, 5])
    pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(GARBAGE))
    return b"".join(pieces)


def garbage(request: RawRequest, rng: random.Random) -> bytes:
    return rng.choice([*GARBAGE, rng.randbytes(rng.choice([1, 20, 2000]))])


def old_version(request: RawRequest, rng: random.Random) -> bytes:
    request.version = rng.choice(["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1", "HTTP/1.1 x", ""])
    return request.bytes()


def upgraded(request: RawRequest, rng: random.Random) -> bytes:
    for name, value in rng.choice(UPGRADES).items():
        request.set_header(name, value)
    return request.bytes()


def expecting(request: RawRequest, rng: random.Random) -> bytes:
    request.set_header("Expect", "100-continue")
    return request.bytes()[: -len(request.body) or None]


FRAME_EDITS: list[Callable[[RawRequest, random.Random], bytes]] = [
    *(wrong_length, wrong_length, broken_chunks, broken_chunks, cut, flipped, flipped, pipelined),
    *(garbage, old_version, upgraded, expecting),
]
