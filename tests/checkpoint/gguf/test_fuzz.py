"""Thousands of damaged headers: each is read or refused with a DataError, fast and in little
memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.checkpoint.gguf.header import HeaderCursor, parse_header, read_header
from weft.checkpoint.gguf.hf_names import read_config
from weft.checkpoint.gguf.special_ids import read_special_ids
from weft.checkpoint.gguf.vocabularies import read_tokenizer
from weft.checkpoint.gguf.writer import write_gguf
from weft.core.errors import DataError

from .material import U32, U64, small_file
from .tiny import VOCAB, original, saved, tokenizer

COUNT = 6000
HUGE = (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """A small file with flipped bytes, cut short, grown, or with numbers made huge."""
    rng, whole = random.Random(seed), small_file()
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            spoil(data, rng)
        yield bytes(data)


def spoil(data: bytearray, rng: random.Random) -> None:
    kind = rng.randrange(5)
    place = rng.randrange(max(1, len(data) - 8))
    if kind == 0:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[place] = rng.randrange(256)
    elif kind == 2:
        del data[rng.randrange(1, len(data)) :]
    elif kind == 3:
        data[place : place + 8] = U64.pack(rng.choice(HUGE))
    else:
        data[place : place + 4] = U32.pack(rng.choice(HUGE) % 2**32)


def test_damaged_headers_are_read_or_refused() -> None:
    outcomes, start = {"read": 0, "refused": 0}, time.process_time()
    for index, data in enumerate(damaged(seed=0, count=COUNT)):
        # tracing makes parsing several times slower
        if index % 5 == 0:
            outcomes[traced_outcome(data)] += 1
        else:
            outcomes[outcome_of(data)] += 1
    assert sum(outcomes.values()) == COUNT
    assert min(outcomes.values()) > COUNT // 20, outcomes
    assert time.process_time() - start < 20


def outcome_of(data: bytes) -> str:
    try:
        header = parse_header(HeaderCursor(data, Path("damaged.gguf")))
    except DataError as error:
        assert len(str(error)) < 3000
        return "refused"
    assert all(t.start + t.num_bytes <= len(data) for t in header.tensors.values())
    return "read"


def traced_outcome(data: bytes) -> str:
    """`outcome_of` with a bound on the memory that it may take."""
    tracemalloc.start()
    try:
        outcome = outcome_of(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, f"{peak} bytes for a file of {len(data)}"
    return outcome


VALUES: list[Any] = [
    *(0, 1, -1, 7, 2**40, 2**31, 0.0, -1.5, float("nan"), float("inf"), True, False),
    *("", "x", "yarn", [], ["a"], ["a", "a"], ["a b", "c"], [["a"]]),
    np.array([], dtype=np.int32),
    np.array([1, 2]),
    np.array([3] * VOCAB),
    np.full(VOCAB, np.nan, dtype=np.float32),
    np.ones(VOCAB, dtype=bool),
]
"""What a value may be that should have been something else."""


@pytest.mark.parametrize("name", ["llama 3", "qwen2 yarn", "gemma3", "deepseek 3", "bert", "t5"])
def test_settings_of_wrong_kinds_are_read_or_refused(name: str, tmp_path: Path) -> None:
    rng, path = random.Random(name), tmp_path / "x.gguf"
    config = original(name).config.to_dict()
    write_gguf(path, config, saved(name, tmp_path), tokenizer(), file_type="f32")
    header = read_header(path)
    for _ in range(400):
        metadata = dict(header.metadata)
        for key in rng.sample(sorted(metadata), rng.choice((1, 1, 2))):
            metadata[key] = rng.choice(VALUES)
        with suppress(DataError):
            read_config(replace(header, metadata=metadata))
        with suppress(DataError):
            read_tokenizer(metadata, path)
        read_special_ids(metadata)


def test_every_length_of_a_cut_file_is_refused() -> None:
    whole = small_file()
    data_end = len(whole) - 256 + 208
    for length in range(len(whole)):
        cursor = HeaderCursor(whole[:length], Path("cut.gguf"))
        try:
            parse_header(cursor)
            assert length >= data_end, f"{length} bytes were enough"
        except DataError:
            assert length < data_end, f"{length} bytes were not enough"
