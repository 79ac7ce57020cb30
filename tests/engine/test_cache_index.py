"""Crafted cache files: checksums that are right, and contents that are not. Each is one error, and
the cache that it was to be loaded into is still empty and correct."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from weft.core.errors import DataError
from weft.engine.cache_file import tensor_bytes
from weft.engine.cache_index import CacheIndexError, IndexLayout, unpack_index
from weft.engine.scheduling.audit import audit

from .test_cache_file import PROMPTS, make, run


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the index and the tensors of a file, with new checksums."""
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    index = json.loads(zlib.decompress(tensor_bytes(tensors["index"])))
    change(index, tensors)
    if "index" in tensors and tensors["index"].dtype == torch.uint8:
        packed = bytearray(zlib.compress(json.dumps(index).encode()))
        tensors["index"] = torch.frombuffer(packed, dtype=torch.uint8)
    sums = {name: zlib.crc32(tensor_bytes(tensor)) for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={**metadata, "sums": json.dumps(sums)})


def set_run(field: int, value: Any) -> Callable[..., None]:
    return lambda index, _: index["runs"][0].__setitem__(field, value)


def set_source(field: int, value: Any) -> Callable[..., None]:
    return lambda index, _: index["sources"][0].__setitem__(field, value)


def change_tensor(change: Callable[[Any], Any], name: str = "1.k") -> Callable[..., None]:
    return lambda _, tensors: tensors.__setitem__(name, change(tensors[name]))


def first_page(index: dict[str, Any]) -> list[int]:
    page_ids: list[int] = index["runs"][0][2][0]
    return page_ids


CHANGES: dict[str, Callable[..., Any]] = {
    "a page beyond the file": lambda index, _: first_page(index).__setitem__(0, 999),
    "a negative page": lambda index, _: first_page(index).__setitem__(0, -1),
    "a missing page": lambda index, _: first_page(index).__setitem__(0, 0),
    "a page twice in a run": lambda index, _: first_page(index).__setitem__(
        0, index["runs"][0][2][1][0]
    ),
    "a page of another run": lambda index, _: first_page(index).__setitem__(
        0, index["runs"][-1][2][-1][0]
    ),
    "a page of a source": lambda index, _: first_page(index).__setitem__(
        0, index["sources"][0][2][0][0]
    ),
    "too many pages in a block": lambda index, _: first_page(index).append(1),
    "fewer blocks": lambda index, _: index["runs"][0][2].pop(),
    "fewer tokens": lambda index, _: index["runs"][0][1].pop(),
    "no blocks": lambda index, _: index["runs"][0].__setitem__(slice(1, 3), [[], []]),
    "a token that is text": set_run(1, ["a"] * 4),
    "tokens that are text": set_run(1, "abcdefgh"),
    "a huge token": set_run(1, [2**70] * 8),
    "a namespace that is a number": set_run(0, 7),
    "half a surrogate pair": set_run(0, "\ud800"),
    "a last use that is text": set_run(3, "now"),
    "a run of three fields": lambda index, _: index["runs"][0].pop(),
    "runs that are a number": lambda index, _: index.__setitem__("runs", 7),
    "other keys": lambda index, _: index.__setitem__("more", []),
    "a source twice": lambda index, _: index["sources"].append(index["sources"][0]),
    "a source that is too long": set_source(1, 999),
    "an empty source": set_source(1, 0),
    "a source without tables": set_source(2, []),
    "a source with a page beyond the file": set_source(2, [[1, 999]]),
    "a source whose key is a number": set_source(0, 7),
    "fewer rows": change_tensor(lambda rows: rows[:-1]),
    "rows of another shape": change_tensor(lambda rows: rows[:, :, :1].contiguous()),
    "rows of another dtype": change_tensor(lambda rows: rows.double()),
    "an index of another dtype": change_tensor(lambda index: index.float(), "index"),
    "no index": lambda _, tensors: tensors.pop("index"),
    "no rows of a layer": lambda _, tensors: tensors.pop("1.v"),
    "one tensor more": lambda _, tensors: tensors.__setitem__("9.k", torch.zeros(1)),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]]]:
    path, engine = tmp_path_factory.mktemp("caches") / "cache", make("t5")
    answers = run(engine, PROMPTS)
    engine.save_cache(path)
    return path, answers


@pytest.mark.parametrize("change", CHANGES)
def test_wrong_contents_are_refused_before_anything_changes(
    change: str, saved: tuple[Path, list[list[Any]]], tmp_path: Path
) -> None:
    whole, answers = saved
    path, engine = tmp_path / "cache", make("t5")
    path.write_bytes(whole.read_bytes())
    rewrite(path, lambda index, tensors: None)
    assert make("t5").load_cache(path).num_pages > 0, "a file with new checksums is valid"
    rewrite(path, CHANGES[change])
    with pytest.raises(DataError, match="is not a complete cache file .* Delete it") as caught:
        engine.load_cache(path)
    assert "\n" not in str(caught.value)
    assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_usable
    assert not engine.kv_cache.encoder_cache.sources
    audit(engine.scheduler.state)
    assert run(engine, PROMPTS[:1]) == answers[:1]


def test_a_file_without_valid_checksums_is_refused(saved: Any, tmp_path: Path) -> None:
    engine = make("t5")
    with safe_open(saved[0], framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for sums in (None, "{", "7", "[" * 9999):
        changed = {name: text for name, text in metadata.items() if name != "sums"}
        if sums is not None:
            changed["sums"] = sums
        save_file(tensors, tmp_path / "cache", metadata=changed)
        with pytest.raises(DataError, match="is not a complete cache file"):
            engine.load_cache(tmp_path / "cache")


LAYOUT = IndexLayout(4, [None], 0, num_pages=2, max_bytes=10_000)


def index_of(text: str | bytes) -> memoryview:
    return memoryview(zlib.compress(text if isinstance(text, bytes) else text.encode()))


def test_the_index_is_bounded_before_it_is_decompressed() -> None:
    bomb = index_of(b"[" + b"1," * 50_000_000 + b"1]")
    assert len(bomb) < 200_000
    with pytest.raises(CacheIndexError, match="it has more than 10000 bytes"):
        unpack_index(bomb, LAYOUT)


@pytest.mark.parametrize("text", ["[" * 5000, '{"runs": ' + "9" * 5000 + "}", "", "[]", "\ufeff{}"])
def test_an_index_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(CacheIndexError, match="its index"):
        unpack_index(index_of(text), LAYOUT)
    with pytest.raises(CacheIndexError, match="its index"):
        unpack_index(index_of(text)[:-4], LAYOUT)


def test_runs_with_a_common_prefix_share_its_pages() -> None:
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    runs = [["", first, [[1]], 3], ["", first + second, [[1], [2]], 4]]
    contents = unpack_index(index_of(json.dumps({"runs": runs, "sources": []})), LAYOUT)
    assert contents.pages == [1, 2]
    runs[0] = ["other", first, [[1]], 3]
    with pytest.raises(CacheIndexError, match="a page is in two places"):
        unpack_index(index_of(json.dumps({"runs": runs, "sources": []})), LAYOUT)
    runs[0] = ["", first, [[2]], 3]
    with pytest.raises(CacheIndexError, match="a page is in two places"):
        unpack_index(index_of(json.dumps({"runs": runs, "sources": []})), LAYOUT)
