"""An exception at any line of a step: the engine works afterwards, its pages are accounted for, and
every request ends with the same tokens, log-probabilities and text as without it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.engine.line_faults import (
    FAULTS,
    SCENARIOS,
    SOURCES,
    Fault,
    FaultRun,
    Line,
    LineFault,
    check_engine,
    first_line,
    lines_of,
    reached_lines,
    run_with_fault,
)
from tests.engine.test_attention_rows import MODELS
from tests.engine.tiny import tiny
from weft.cache.radix_cache import RadixCache
from weft.checkpoint.weft_folder import Checkpoint
from weft.engine.engine import Engine
from weft.engine.recovery import recover
from weft.engine.request import RequestOutput
from weft.engine.scheduling.audit import audit

SAMPLED = 90
"""`make test` takes every 90th line, beginning at `first_line`."""
OWN = ("/engine/", "/cache/")
"""Lines of these packages get all kinds of exceptions, other lines one of them in turn."""


@cache
def expected(name: str) -> tuple[list[Line], dict[tuple[str, int], Any]]:
    """Lines that a scenario reaches, and its results; tables that models compute once are there."""
    FaultRun(SCENARIOS[name]).run_undisturbed()
    return reached_lines(SCENARIOS[name])


@cache
def all_cases() -> list[tuple[str, Line, Fault]]:
    """Every line at its first hit over all scenarios, with the exceptions that it raises."""
    first: dict[Line, str] = {}
    for name in SCENARIOS:
        for line in expected(name)[0]:
            first.setdefault(line, name)
    cases = []
    for index, (line, name) in enumerate(first.items()):
        is_own = line[0].removeprefix(SOURCES).startswith(OWN)
        faults = FAULTS if is_own else [FAULTS[index % len(FAULTS)]]
        cases += [(name, line, fault) for fault in faults]
    return cases


def check_cases(cases: list[tuple[str, Line, Fault]]) -> None:
    failures = []
    for name, line, fault in cases:
        try:
            results, _ = run_with_fault(SCENARIOS[name], line, fault)
            assert results == expected(name)[1], "the results differ"
        except (AssertionError, Exception) as error:
            failures.append(f"{name}: {fault.__name__} at {line[0]}:{line[1]}: {error!r}")
    print(f"{len(cases)} cases, {len(failures)} failures")
    assert not failures, "\n".join(failures)


def test_an_exception_at_a_line_changes_no_result():
    start = first_line(SAMPLED)
    cases = all_cases()
    print(f"{len({line for _, line, _ in cases})} lines, {len(cases)} cases, starting at {start}")
    check_cases(cases[start::SAMPLED])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_an_exception_at_every_line_changes_no_result(part):
    check_cases(all_cases()[part::4])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefill", "decode", "drafts", "encoder-decoder"])
def test_an_exception_while_a_new_model_computes_its_tables_changes_no_result(name):
    """Lines that only the first steps of a model reach: positions, vocabularies, packed rows."""
    _, results = expected(name)
    model = SCENARIOS[name].model
    cold, _ = reached_lines(SCENARIOS[name], fresh_checkpoint(model))
    lines = [line for line in cold if line not in set(expected(name)[0])]
    num_reached = 0
    for index, line in enumerate(lines):
        fault, checkpoint = FAULTS[index % 3], fresh_checkpoint(model)
        found, run = run_with_fault(SCENARIOS[name], line, fault, checkpoint=checkpoint)
        assert found == results, line
        num_reached += run.has_fault
    print(f"{num_reached} of {len(lines)} lines")
    # the others fill caches of the process, which no later run fills again
    assert num_reached > len(lines) // 2


def fresh_checkpoint(model: str) -> Checkpoint:
    """A copy of a model as it was loaded."""
    return tiny(**MODELS[model])


@pytest.mark.parametrize("name", ["decode", "multi-step", "drafts"])
def test_a_recovery_that_is_interrupted_is_repeated(name, monkeypatch):
    """The second exception is raised where the recovery has done part of its work."""
    lines, results = expected(name)
    for method in ("requeue_all", "recount"):
        place = next(one for one in lines if one[0].endswith("engine/scheduling/commit.py"))
        run, injected, count = FaultRun(SCENARIOS[name]), LineFault(place, KeyboardInterrupt), [0]
        target = run.engine.scheduler.state if method == "requeue_all" else run.engine.kv_cache
        real = getattr(target, method)

        def interrupted(*args: Any, real: Any = real, count: list[int] = count) -> None:
            real(*args)
            count[0] += 1
            if count[0] == 1:
                raise KeyboardInterrupt("again")

        def step(run: FaultRun = run, injected: LineFault = injected) -> list[RequestOutput]:
            try:
                with injected:
                    return run.engine.step()
            except KeyboardInterrupt:
                return []

        monkeypatch.setattr(target, method, interrupted)
        assert run.run(step) == results and count[0] > 1


@pytest.mark.parametrize("name", ["decode", "drafts", "encoder-decoder"])
def test_damaged_caches_are_emptied_and_the_results_stay(name):
    """As after an operation on the tree that was interrupted: its tokens and pages disagree."""
    _, results = expected(name)
    run = FaultRun(SCENARIOS[name])
    engine, interrupts = run.engine, iter([False] * 4 + [True])

    def step() -> list[RequestOutput]:
        outputs = engine.step()
        if next(interrupts, False):
            damage(engine)
            with pytest.raises(AssertionError):
                audit(engine.scheduler.state)
            recover(engine.state)
            assert not list(engine.kv_cache.prefix_cache.block_pages())
            assert engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_usable
        check_engine(engine)
        return outputs

    assert run.run(step) == results


def damage(engine: Engine) -> None:
    cache_ = engine.kv_cache.prefix_cache
    if hasattr(cache_, "roots"):
        node = next(iter(next(iter(cache_.roots.values())).children.values()))
        node.block_pages.append(node.block_pages[0])
    else:
        next(iter(cache_.blocks.values())).tokens.pop()


def test_an_interrupted_operation_on_the_tree_is_found_by_the_recount():
    """In `RadixCache.add` there are lines between which tokens and pages disagree."""
    name, resets = "preemption", 0
    code = RadixCache.add.__code__
    for line in expected(name)[0]:
        if line[0] == code.co_filename and line[1] in lines_of(code):
            results, run = run_with_fault(SCENARIOS[name], line, KeyboardInterrupt)
            assert results == expected(name)[1]
            resets += run.engine.kv_cache.num_resets
    assert resets > 0
