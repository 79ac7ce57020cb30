"""Stored responses: per key, bounded in number and bytes."""

from __future__ import annotations

import pytest

from weft.serve.api_errors import ApiError
from weft.serve.response_store import ResponseStore, StoredResponse


def stored(name: str, text: str = "") -> StoredResponse:
    output = [{"id": f"msg_{name}", "text": text}]
    return StoredResponse({"id": name, "output": output}, [{"id": f"in_{name}"}])


def ids(store: ResponseStore, key: str) -> list[str]:
    return list(store.keys.get(key, ()))


def test_the_least_recently_used_response_is_dropped():
    store = ResponseStore(max_responses=3)
    for name in "abc":
        store.put("ann", stored(name))
    store.get("ann", "a")
    store.put("ann", stored("d"))
    assert ids(store, "ann") == ["c", "a", "d"]
    with pytest.raises(ApiError, match="response 'b' is not stored"):
        store.get("ann", "b")


def test_a_key_displaces_only_its_own_responses():
    store = ResponseStore(max_bytes=2000)
    store.put("bob", stored("b"))
    for number in range(20):
        store.put("ann", stored(f"a{number}", "x" * 200))
    assert ids(store, "bob") == ["b"] and ids(store, "ann")[-1] == "a19"
    assert sum(store.num_bytes.values()) <= 2000
    assert store.num_bytes["ann"] == sum(one.num_bytes for one in store.keys["ann"].values())


def test_a_response_that_is_too_large_is_not_kept():
    store = ResponseStore(max_bytes=1000)
    store.put("ann", stored("a", "x" * 2000))
    assert len(store) == 0 and not store.num_bytes


def test_items_are_found_by_id_and_only_with_their_key():
    store = ResponseStore()
    store.put("ann", stored("a"))
    assert set(store.items("ann")) == {"in_a", "msg_a"} and not store.items("bob")
    store.delete("ann", "a")
    assert not store.items("ann")
    with pytest.raises(ApiError, match="is not stored"):
        store.delete("ann", "a")
