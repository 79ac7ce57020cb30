"""Safetensors folders: shards, and 5,000 broken headers that end in one sentence each."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weft.checkpoint.safetensors_files import SafetensorsSource, open_safetensors
from weft.checkpoint.safetensors_header import INDEX_FILE, WEIGHTS_FILE, open_file
from weft.core.errors import DataError

TENSORS = {
    "words.weight": torch.arange(12.0).reshape(3, 4),
    "norm.weight": torch.ones(4, dtype=torch.bfloat16),
    "steps": torch.tensor([7]),
}


def read_all(source: SafetensorsSource) -> dict[str, torch.Tensor]:
    return {name: source.read(name) for name in source.shapes}


def test_one_file_is_read_by_name(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / WEIGHTS_FILE)
    source = open_safetensors(tmp_path)
    assert source is not None and source.path == tmp_path / WEIGHTS_FILE
    assert source.shapes == {name: tuple(t.shape) for name, t in TENSORS.items()}
    assert source.dtypes["norm.weight"] == "BF16"
    for name, tensor in read_all(source).items():
        assert torch.equal(tensor, TENSORS[name])
    assert open_safetensors(tmp_path / "empty") is None


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_instead_of_being_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / WEIGHTS_FILE)
    with pytest.raises(DataError, match="model.safetensors: is a pipe or a device, not a file"):
        open_file(tmp_path / WEIGHTS_FILE)


def write_shards(folder: Path, **changes: str) -> None:
    save_file({"words.weight": TENSORS["words.weight"]}, folder / "a.safetensors")
    save_file({"steps": TENSORS["steps"]}, folder / "b.safetensors")
    files = {"words.weight": "a.safetensors", "steps": "b.safetensors", **changes}
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": files}))


def test_shards_are_one_source(tmp_path: Path) -> None:
    write_shards(tmp_path)
    source = open_safetensors(tmp_path)
    assert source is not None
    assert read_all(source).keys() == {"words.weight", "steps"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "../b.safetensors"}, "must be a file in the same folder"),
        ({"steps": "/etc/passwd"}, "must be a file in the same folder"),
        ({"steps": "c.safetensors"}, "no such file"),
        ({"more": "b.safetensors"}, "differ in more"),
        ({"steps": "a.safetensors"}, "differ in steps"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    write_shards(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_an_index_without_a_map_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(DataError, match="has no weight_map"):
        open_safetensors(tmp_path)


def mutated(whole: bytes, rng: random.Random) -> bytes:
    """One way or another to break a header."""
    (size,) = struct.unpack("<Q", whole[:8])
    way = rng.randrange(5)
    if way == 0:
        return whole[: rng.randrange(len(whole))]
    if way == 1:
        claimed = rng.choice([0, 1, size - 1, size + 1, 2**31, 2**60, 2**64 - 1])
        return struct.pack("<Q", claimed) + whole[8:]
    if way == 2:
        header = json.loads(whole[8 : 8 + size])
        entry = rng.choice([value for name, value in header.items() if name != "__metadata__"])
        key = rng.choice(["dtype", "shape", "data_offsets"])
        entry[key] = rng.choice(
            [None, "F99", [2**60, 2**60], [-1], [0, 2**62], [5, 1], {}, "F64", [1.5], [[]], []]
        )
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + whole[8 + size :]
    body = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        body[rng.randrange(8 + size)] = rng.randrange(256)
    return bytes(body)


def test_5000_broken_headers_give_a_sentence_or_the_tensors(tmp_path: Path) -> None:
    path, rng = tmp_path / WEIGHTS_FILE, random.Random(0)
    save_file(TENSORS, path)
    whole, refused = path.read_bytes(), 0
    tracemalloc.start()
    for _ in range(5000):
        path.unlink()  # truncating an existing file makes the file system write it to disk
        path.write_bytes(mutated(whole, rng))
        try:
            read_all(SafetensorsSource(path, {path: open_file(path)}))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 3000
    assert peak < 20_000_000
