"""Freed memory is returned to the system, and nothing breaks where the C library cannot."""

from __future__ import annotations

import pytest

from weft.native import malloc
from weft.native.malloc import MIN_FREED, trim_malloc


@pytest.mark.parametrize("has_malloc_trim", [True, False])
def test_few_bytes_wait_and_many_are_returned(
    has_malloc_trim: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(malloc, "malloc_trim", lambda: calls.append if has_malloc_trim else None)
    assert trim_malloc(MIN_FREED - 1) == MIN_FREED - 1 and calls == []
    assert trim_malloc(MIN_FREED) == trim_malloc() == 0
    assert calls == ([0, 0] if has_malloc_trim else [])


def test_the_c_library_of_this_system_is_called() -> None:
    assert trim_malloc() == 0
