"""An exception at any line of `load_cache`: pages are accounted for, what is cached has its rows,
and requests get the same bits as without a cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from weft.cache.events import EventLog
from weft.core.errors import UsageError
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine

from .line_faults import (
    FAULTS,
    Fault,
    Line,
    LineFault,
    LineRecorder,
    check_engine,
    checkpoint_of,
    first_line,
)
from .test_cache_file import PROMPTS, SMALL, run

CASES = {"gqa": "radix", "some windows": "hash", "t5": "radix"}
"""Models with their prefix caches."""
SAMPLED = 40
"""`make test` takes every 40th line, beginning at `first_line`."""


def make(name: str) -> Engine:
    checkpoint = checkpoint_of(name)
    config = EngineConfig(**{**SMALL, "prefix_cache": CASES[name]})
    engine = Engine(checkpoint.model, checkpoint.tokenizer, config)
    engine.listen(EventLog())
    # rows that were never written give results that are not finite
    for part in engine.runner.need_store().rows:
        for rows in part.values():
            rows.fill_(float("nan"))
    return engine


@pytest.fixture(scope="module")
def cache_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    for name in CASES:
        engine = make(name)
        assert run(engine, PROMPTS) == expected(name)
        engine.save_cache(folder / name)
    return folder


@cache
def expected(name: str) -> list[list[Any]]:
    return run(make(name), PROMPTS)


def lines_of_load(name: str, path: Path) -> list[Line]:
    """The lines that loading a cache reaches, apart from those that compute its key."""
    engine, recorder = make(name), LineRecorder()
    assert engine.cache_key
    with recorder:
        engine.load_cache(path)
    return list(recorder.lines)


def load_with_fault(name: str, path: Path, line: Line, fault: Fault) -> int:
    """Raise at one line, then check everything; returns the number of pages that stay cached."""
    engine, injected = make(name), LineFault(line, fault)
    assert engine.cache_key
    with pytest.raises(fault, match="^at "), injected:
        engine.load_cache(path)
    check_engine(engine)
    pool = engine.kv_cache.pool
    num_cached = pool.num_evictable
    assert pool.num_free + num_cached == pool.num_usable
    if num_cached:
        with pytest.raises(UsageError, match="already holds"):
            engine.load_cache(path)
    else:
        engine.load_cache(path)
    assert run(engine, PROMPTS) == expected(name)
    assert pool.num_free + pool.num_evictable == pool.num_usable
    check_engine(engine)
    return num_cached


def check_lines(name: str, path: Path, start: int = 0, step: int = 1) -> list[int]:
    lines = lines_of_load(name, path)
    cases = [(line, fault) for line in lines for fault in FAULTS][start::step]
    counts = [load_with_fault(name, path, *case) for case in cases]
    print(f"{name}: {len(cases)} cases of {len(lines)} lines, {sum(map(bool, counts))} keep pages")
    return counts


@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_a_line_of_loading_leaves_a_consistent_cache(
    name: str, cache_files: Path
) -> None:
    check_lines(name, cache_files / name, first_line(SAMPLED), SAMPLED)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_every_line_of_loading_leaves_a_consistent_cache(
    name: str, cache_files: Path
) -> None:
    counts = check_lines(name, cache_files / name)
    assert 0 in counts and max(counts) > 0, "interrupted before and after something was cached"
