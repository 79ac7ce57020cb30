"""A worker pool returns what one engine returns, and reports failures of its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_folder
from weft.core.errors import DataError, EngineError, UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.loaded_model import LoadedModel, load
from weft.engine.worker_pool import Assignment, WorkerPool

TEXTS = ["the cat sat on the mat", "", "a dog", "我吃了苹果", "two apples", "a dog ate the mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("pool") / "model")


@pytest.fixture(scope="module")
def translator(folder: Path) -> LoadedModel:
    return load(folder, "cpu")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[WorkerPool]:
    """Shared by the tests that leave it as it was: each process imports torch."""
    with WorkerPool(folder, 2, "cpu") as pool:
        yield pool


@pytest.fixture
def new_pool(folder: Path) -> Iterator[WorkerPool]:
    with WorkerPool(folder, 2, "cpu") as pool:
        yield pool


def test_a_pool_returns_what_one_engine_returns(translator: LoadedModel, pool: WorkerPool) -> None:
    done: list[int] = []
    for beam in (1, 3):
        result = translator.translate_best(TEXTS, beam, beam, progress=done.append, workers=pool)
        assert result == translator.translate_best(TEXTS, beam, beam)
    assert sum(done) == 10
    assert list(pool.search([])) == []


@pytest.mark.parametrize("number", [1, 2, 7, 8, 300])
def test_every_worker_gets_requests_and_all_requests_are_assigned(
    number: int, translator: LoadedModel, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[object, list[int]]] = []
    send = pool.send

    def watched(worker: Connection, chunk: Assignment) -> None:
        sent.append((worker, [place for place, _ in chunk]))
        send(worker, chunk)

    monkeypatch.setattr(pool, "send", watched)
    source = translator.tokenizer.encode("a dog")
    request = translator.request_builder.beam_search(source, 5, BeamConfig(2))
    result = sorted(place for place, _ in pool.search([request] * number))
    assert result == sorted(place for _, places in sent for place in places) == list(range(number))
    assert len({worker for worker, _ in sent}) == min(2, number)
    sizes = [len(places) for _, places in sent]
    assert max(sizes) <= max(1, number // 2 + number % 2) and sizes == sorted(sizes, reverse=True)


def test_a_workers_usage_error_is_raised_here(
    translator: LoadedModel, new_pool: WorkerPool
) -> None:
    source = translator.tokenizer.encode("a dog")
    good = translator.request_builder.beam_search(source, 5, BeamConfig(2))
    with pytest.raises(UsageError, match="max_len"):
        list(new_pool.search([good, replace(good, max_tokens=999)]))
    with pytest.raises(UsageError, match="left in the middle"):
        list(new_pool.search([good]))


def test_a_worker_that_dies_is_an_engine_error(
    translator: LoadedModel, new_pool: WorkerPool
) -> None:
    source = translator.tokenizer.encode("a dog")
    request = translator.request_builder.beam_search(source, 5, BeamConfig(2))
    assert len(list(new_pool.search([request] * 3))) == 3
    os.kill(next(iter(new_pool.workers.values())).pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="exited with code -9. It may have run out of memory"):
        list(new_pool.search([request] * 3))
    new_pool.close()
    with pytest.raises(UsageError, match="is closed"):
        list(new_pool.search([request]))


def test_closing_in_the_middle_of_a_search_kills_the_workers(
    translator: LoadedModel, new_pool: WorkerPool
) -> None:
    source = translator.tokenizer.encode("a dog")
    request = translator.request_builder.beam_search(source, 20, BeamConfig(4))
    next(new_pool.search([request] * 2000))
    processes = list(new_pool.workers.values())
    new_pool.close()
    assert all(process.exitcode is not None for process in processes)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_model_that_cannot_be_loaded_is_an_error_here(
    is_late: bool, tmp_path: Path, translator: LoadedModel
) -> None:
    source = translator.tokenizer.encode("a dog")
    with WorkerPool(tmp_path / "none", 1, "cpu") as pool:
        if is_late:  # the worker has exited before the first request
            next(iter(pool.workers.values())).join()
        with pytest.raises((DataError, UsageError), match="none"):
            list(pool.search([translator.request_builder.beam_search(source, 5, BeamConfig(1))]))


def test_workers_do_not_sample(translator: LoadedModel, pool: WorkerPool) -> None:
    with pytest.raises(UsageError, match="workers only run beam search"):
        translator.translate(["a dog"], workers=pool, temperature=1.0)


def test_a_pool_without_workers_is_rejected(folder: Path) -> None:
    with pytest.raises(UsageError, match="0 workers"):
        WorkerPool(folder, 0)
