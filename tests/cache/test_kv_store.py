"""The memory behind the pages: this process's own, and refused in one way where there is none."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import pytest
import torch

from tests.engine.tiny import tiny
from weft.cache import kv_store
from weft.cache.kv_store import lazy_zeros
from weft.core.errors import UsageError
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.loaded_model import LoadedModel


def test_a_forked_process_has_pages_of_its_own() -> None:
    rows = lazy_zeros((2, 3), "cpu", torch.float32)
    rows[0] = 1.0
    child = os.fork()
    if child == 0:
        rows[1] = 7.0
        os._exit(0 if rows[0, 0] == 1.0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rows.tolist() == [[1.0] * 3, [0.0] * 3]


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="4611686018427387904 bytes of memory are not available"):
        lazy_zeros((2**60,), "cpu", torch.float32)


def test_a_cache_that_is_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(UsageError, match=r"needs 60000\.\d\d GiB .*but only .* are left of"):
        LoadedModel(tiny("decoder"), EngineConfig(cache_gib=60_000)).client  # noqa: B018


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says")
def test_memory_is_taken_as_it_is_used_or_at_the_start() -> None:
    model, before = tiny("decoder").model, resident()
    lazy = Engine(model, config=EngineConfig(cache_gib=0.1))
    between = resident()
    early = Engine(model, config=EngineConfig(cache_gib=0.1, reserve=True))
    assert between - before < 0.03 * 2**30
    assert resident() - between > 0.09 * 2**30
    assert lazy.kv_cache.pool.num_pages == early.kv_cache.pool.num_pages


def test_memory_is_assigned_in_units_that_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "RESERVE_BYTES", 3 * mmap.PAGESIZE)
    store = Engine(tiny("decoder").model, config=EngineConfig(num_pages=400)).runner.store
    assert store is not None
    tensors = [stored for rows in store.rows for stored in rows.values()]
    for number, stored in enumerate(tensors):
        stored.view(torch.int32).random_(generator=torch.Generator().manual_seed(number))
        stored.view(-1)[0], stored.view(-1)[-1] = -0.0, float("nan")
    before = [stored.clone().view(torch.int32) for stored in tensors]
    num_units = sum(1 for _ in store.reserve_units())
    assert num_units == sum(-(-one.nbytes // (3 * mmap.PAGESIZE)) for one in tensors) > len(tensors)
    assert all(
        torch.equal(one, stored.view(torch.int32))
        for one, stored in zip(before, tensors, strict=True)
    )
