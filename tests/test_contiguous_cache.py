"""The contiguous cache, tested with plain numbers."""

from __future__ import annotations

import pytest
import torch

from tests.contiguous_cache import ContiguousCache
from weft.core.errors import UsageError
from weft.core.kv_spec import KVSpec


def cache(max_len: int = 6) -> ContiguousCache:
    specs = [KVSpec({"k": (2, 3), "v": (2, 3)}), KVSpec({"latent": (4,)}, is_cross=True)]
    return ContiguousCache(specs, batch_size=2, max_len=max_len)


def rows(*values: list[float]) -> dict[str, torch.Tensor]:
    k = torch.tensor(values, dtype=torch.float32)[:, :, None, None].expand(-1, -1, 2, 3)
    return {"k": k, "v": -k}


def test_rows_come_back_in_the_order_they_were_stored() -> None:
    store = cache()
    store.extend(0, rows([1, 2], [3, 4]))
    store.advance(2)
    back = store.extend(0, rows([5], [6]))
    assert back["k"][:, :, 0, 0].tolist() == [[1, 2, 5], [3, 4, 6]]
    assert back["v"][:, :, 1, 2].tolist() == [[-1, -2, -5], [-3, -4, -6]]


def test_new_rows_overwrite_the_padding_of_a_shorter_sequence() -> None:
    store = cache()
    store.extend(0, rows([1, 2, 3], [4, 99, 99]))
    store.advance(torch.tensor([3, 1]))
    back = store.extend(0, rows([5], [6]))
    assert back["k"][0, :, 0, 0].tolist() == [1, 2, 3, 5]
    assert back["k"][1, :2, 0, 0].tolist() == [4, 6]


def test_start_becomes_one_number_again_when_lengths_meet() -> None:
    store = cache()
    store.advance(torch.tensor([3, 1]))
    assert isinstance(store.start, torch.Tensor)
    store.advance(torch.tensor([0, 2]))
    assert store.start == 3


def test_a_source_is_made_once() -> None:
    store, calls = cache(), []

    def make() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"latent": torch.ones(2, 5, 4)}

    first, second = store.source(1, make), store.source(1, make)
    assert first is second and len(calls) == 1


def test_a_full_cache_says_both_numbers() -> None:
    store = cache(max_len=2)
    store.extend(0, rows([1, 2], [3, 4]))
    store.advance(2)
    with pytest.raises(UsageError, match="has 3 tokens but the cache holds 2"):
        store.extend(0, rows([5], [6]))
