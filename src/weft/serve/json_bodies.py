"""JSON bodies of requests: read strictly, so that every value that was read can be returned.

The standard library accepts NaN, lone surrogates and integers of any size, none of which can be
written as JSON again. orjson rejects the first two and reads integers beyond 64 bits as floats.
Deeply nested values, which chat templates and grammars would follow recursively, are rejected.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from weft.serve.api_errors import ApiError

MAX_DEPTH = 100
ORJSON_DEPTH = 254
"""Nested containers that orjson writes."""


class JsonRequest(Request):
    """A request whose JSON is read by `read_json`."""

    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(body: bytes, name: str = "the body") -> Any:
    """The value of a JSON text; an ApiError 400 that says what is wrong and where."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"{name} is not valid JSON: {error}. Correct it.") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        check_depth(value, name)
    return value


def check_depth(value: Any, name: str) -> None:
    """Raise an ApiError for a value with more than MAX_DEPTH nested containers. orjson counts them:
    it is faster than any loop here, and bodies have up to 16 MB."""
    for _ in range(ORJSON_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise ApiError(
            400,
            f"{name} has more than {MAX_DEPTH} objects and lists inside of each other. Nest them "
            "less deeply.",
        ) from None
