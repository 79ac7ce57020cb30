"""Responses that later requests may refer to: id -> `StoredResponse`, in memory.

    store.put(caller.name, StoredResponse(response, items))
    store.get(caller.name, "resp_...")          ApiError 404 for the id of another API key

At most 1,000 responses or 64 MB are kept, over all keys; they are lost at a restart. If there are
more, the least recently used response of the key with most bytes is dropped, so that one key cannot
displace the conversations of the others. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from weft.serve.api_errors import ApiError

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20

Item = dict[str, Any]
"""An item of a conversation in OpenAI's form: type, id and the fields of its type."""


@dataclass(frozen=True)
class StoredResponse:
    """A response and what it was the answer to."""

    response: dict[str, Any]
    """OpenAI's object."""
    input_items: Sequence[Item]
    """The whole conversation before it, earlier responses included, without instructions."""

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def items(self) -> list[Item]:
        """The conversation up to the end of this response."""
        return [*self.input_items, *self.response["output"]]

    @cached_property
    def num_bytes(self) -> int:
        """Size as JSON. Items that several responses share are counted in each."""
        return len(orjson.dumps(self.response)) + len(orjson.dumps(list(self.input_items)))


class ResponseStore:
    """The stored responses of one server."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.max_responses, self.max_bytes = max_responses, max_bytes
        self.keys: dict[str, OrderedDict[str, StoredResponse]] = {}
        """By name of the API key; least recently used first."""
        self.num_bytes: dict[str, int] = {}
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self.keys.values()))

    def put(self, key: str, response: StoredResponse) -> None:
        """Add a response; others may be dropped, or itself if it is too large."""
        with self.lock:
            self.keys.setdefault(key, OrderedDict())[response.id] = response
            self.num_bytes[key] = self.num_bytes.get(key, 0) + response.num_bytes
            while len(self) > self.max_responses or sum(self.num_bytes.values()) > self.max_bytes:
                largest = max(self.num_bytes, key=self.num_bytes.__getitem__)
                self.remove(largest, next(iter(self.keys[largest])))

    def get(self, key: str, response_id: str, param: str | None = None) -> StoredResponse:
        """A response of this key; `param`: the field of the request that names it."""
        with self.lock:
            self.check(key, response_id, param)
            self.keys[key].move_to_end(response_id)
            return self.keys[key][response_id]

    def delete(self, key: str, response_id: str) -> None:
        with self.lock:
            self.check(key, response_id, None)
            self.remove(key, response_id)

    def items(self, key: str) -> dict[str, Item]:
        """All items of a key's responses by id, for references to single ones."""
        with self.lock:
            responses = list(self.keys.get(key, {}).values())
        return {item["id"]: item for response in responses for item in response.items}

    def check(self, key: str, response_id: str, param: str | None) -> None:
        if response_id not in self.keys.get(key, {}):
            raise ApiError(
                404,
                f"response {response_id[:80]!r} is not stored: it does not exist, was deleted, or "
                f"is older than the last {self.max_responses} responses or {self.max_bytes >> 20} "
                "MB. Send the whole conversation as input.",
                param=param,
                code="response_not_found",
            )

    def remove(self, key: str, response_id: str) -> None:
        removed = self.keys[key].pop(response_id)
        self.num_bytes[key] -= removed.num_bytes
        if not self.keys[key]:
            del self.keys[key], self.num_bytes[key]
