"""Weights are moved to huge pages where the system has them; their numbers stay as they are."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from weft.native import huge_pages
from weft.native.huge_pages import (
    HUGE_PAGE,
    bytes_by_range,
    collapse_function,
    huge_page_units,
)


def huge_page_bytes() -> int:
    """Memory of this process in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def linux_version() -> tuple[int, ...]:
    """(0,): another system."""
    is_linux = platform.system() == "Linux"
    return tuple(map(int, platform.release().split(".")[:2])) if is_linux else (0,)


def use_huge_pages(tensors: Iterable[torch.Tensor]) -> int:
    """All units; the bytes moved."""
    units = huge_page_units(tensors)
    while True:
        try:
            next(units)
        except StopIteration as stop:
            return int(stop.value)


def test_the_bytes_of_a_range_are_those_of_its_tensors() -> None:
    whole = torch.zeros(5 * HUGE_PAGE, dtype=torch.uint8)
    first = -whole.data_ptr() % HUGE_PAGE
    number = (whole.data_ptr() + first) // HUGE_PAGE
    aligned = whole[first:]
    parts = [aligned[:100], aligned[HUGE_PAGE - 50 : HUGE_PAGE + 8], aligned[:100]]
    assert bytes_by_range(parts) == {number: 150, number + 1: 8}  # a shared tensor counts once


def test_weights_are_moved_and_keep_their_numbers() -> None:
    weights = [torch.randn(256, 1024) for _ in range(24)]  # of 1 MB each
    expected, before = [weight.clone() for weight in weights], huge_page_bytes()
    moved = use_huge_pages(weights)
    assert all(map(torch.equal, weights, expected))
    assert moved % HUGE_PAGE == 0 and huge_page_bytes() - before >= moved
    if collapse_function() is not None and linux_version() >= (6, 1):
        assert moved >= 4 * HUGE_PAGE  # of 12, if memory is not fragmented
    assert use_huge_pages(weights) == moved  # again: nothing is left to do, and nothing breaks


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_a_system_without_huge_pages_is_left_as_it_is(
    setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "enabled"
    if setting is not None:
        path.write_text(setting)
    monkeypatch.setattr(huge_pages, "SETTING", path)
    collapse_function.cache_clear()
    try:
        assert use_huge_pages([torch.zeros(4 * HUGE_PAGE, dtype=torch.uint8)]) == 0
    finally:
        collapse_function.cache_clear()
