"""Server-sent events with ids: `{"event": name, "id": 7, "data": JSON}` -> bytes."""

from __future__ import annotations

from typing import Any

import orjson

EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "event": {"type": "string"},
                        "id": {"type": "string"},
                        "data": {"type": "string"},
                    },
                    "required": ["data"],
                }
            }
        }
    }
}
"""The `responses` of a route that answers with a stream of events."""


def event_bytes(number: int, event: str, data: Any) -> bytes:
    """One event. Ids increase, so that a client can say which it has seen."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, event.encode(), orjson.dumps(data))
