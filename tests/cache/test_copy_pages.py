"""Copies of pages: the rows that hold something arrive, in every place, and nothing else moves."""

from __future__ import annotations

import pytest
import torch

from weft.cache.kv_store import KVStore
from weft.cache.page_tables import PageCopy
from weft.core.kv_spec import KVSpec
from weft.native import kernels


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_arrive_in_every_place(
    is_compiled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(kernels, "native", lambda: None)
    spec = KVSpec({"k": (2, 3), "v": (2, 5)})
    store = KVStore([spec] * 3, [(0, 0), (0, 1), (1, 0)], 9, 4, dtype=dtype)
    for rows in store.rows:
        for stored in rows.values():
            stored.copy_(torch.randn(stored.shape))
    before = [{name: stored.clone() for name, stored in rows.items()} for rows in store.rows]
    # 3 is read by one copy and then written by another
    copies = [PageCopy(3, 7, 2), PageCopy(5, 3, 1), PageCopy(1, 8, 4)]
    store.copy_pages(copies)
    for rows, old in zip(store.rows, before, strict=True):
        for name, stored in rows.items():
            for source, target, count in copies:
                assert stored[target, :count].equal(old[name][source, :count])
            for page in {0, 1, 2, 4, 5, 6}:
                assert stored[page].equal(old[name][page])
