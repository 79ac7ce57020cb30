"""Memory goes back where much was freed, and nothing breaks where the system has no way for it."""

from __future__ import annotations

import pytest

from weft.nn import memory
from weft.nn.memory import MUCH, give_back


@pytest.mark.parametrize("has_way", [True, False])
def test_little_waits_and_much_is_given_back(
    has_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory, "trim", lambda: calls.append if has_way else None)
    assert give_back(MUCH - 1) == MUCH - 1 and calls == []
    assert give_back(MUCH) == give_back() == 0
    assert calls == ([0, 0] if has_way else [])


def test_this_systems_own_way_is_called() -> None:
    assert give_back() == 0
