"""JSON of cache events -> events, as a reducer in another language reads them."""

from __future__ import annotations

from typing import Any

from weft.cache.events import CacheEvent, PageEvent, TreeEvent

FIELDS = {"num_blocks": "number", "block": "number", "locks": "number"}


def event_of(op: dict[str, Any]) -> CacheEvent:
    """The event that has this JSON."""
    kind, step = op["op"], op["step"]
    if kind == "reset":
        return PageEvent("reset", step, 0, "")
    if "page" in op:
        return PageEvent(kind, step, op["page"], op["owner"], op.get("rows", op.get("from", 0)))
    names = ("parent", "namespace", "tokens", "blocks", "last_use")
    fields = {name: op[name] for name in names if op.get(name) is not None}
    fields |= {field: op[name] for name, field in FIELDS.items() if name in op}
    if op.get("tokens", ()) is None:  # another caller's
        fields["tokens"] = [0] * op["num_tokens"]
    if "pages" in op:
        fields["blocks"] = [op["pages"]]
    return TreeEvent(kind, step, op["node"], **fields)
