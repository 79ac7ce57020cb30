"""A team of processes finds what one engine finds, and says what goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_folder
from weft.core.errors import DataError, UsageError
from weft.engine.beam import BeamConfig
from weft.engine.load import load
from weft.engine.model import LoadedModel
from weft.engine.team import Portion, Team

TEXTS = ["the cat sat on the mat", "", "a dog", "我吃了苹果", "two apples", "a dog ate the mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("team") / "model")


@pytest.fixture(scope="module")
def translator(folder: Path) -> LoadedModel:
    return load(folder, "cpu")


@pytest.fixture(scope="module")
def team(folder: Path) -> Iterator[Team]:
    """Shared by the tests that leave it as it was: each process imports torch."""
    with Team(folder, 2, "cpu") as team:
        yield team


@pytest.fixture
def new_team(folder: Path) -> Iterator[Team]:
    with Team(folder, 2, "cpu") as team:
        yield team


def test_it_finds_what_one_engine_finds(translator: LoadedModel, team: Team) -> None:
    done: list[int] = []
    for beam in (1, 3):
        found = translator.translate_best(TEXTS, beam, beam, progress=done.append, team=team)
        assert found == translator.translate_best(TEXTS, beam, beam)
    assert sum(done) == 10
    assert list(team.search([])) == []


@pytest.mark.parametrize("number", [1, 2, 7, 8, 300])
def test_everybody_has_something_and_everything_is_handed_out(
    number: int, translator: LoadedModel, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, list[int]]] = []
    tell = team.tell

    def watched(member: Connection, portion: Portion) -> None:
        told.append((member, [place for place, _ in portion]))
        tell(member, portion)

    monkeypatch.setattr(team, "tell", watched)
    source = translator.tokenizer.encode("a dog")
    writing = translator.requests.searched(source, 5, BeamConfig(2))
    found = sorted(place for place, _ in team.search([writing] * number))
    assert found == sorted(place for _, places in told for place in places) == list(range(number))
    assert len({member for member, _ in told}) == min(2, number)
    sizes = [len(places) for _, places in told]
    assert max(sizes) <= max(1, number // 2 + number % 2) and sizes == sorted(sizes, reverse=True)


def test_what_a_process_refuses_is_said_here(translator: LoadedModel, new_team: Team) -> None:
    source = translator.tokenizer.encode("a dog")
    good = translator.requests.searched(source, 5, BeamConfig(2))
    with pytest.raises(UsageError, match="max_len"):
        list(new_team.search([good, replace(good, max_tokens=999)]))
    with pytest.raises(UsageError, match="left in the middle"):
        list(new_team.search([good]))


def test_a_process_that_dies_is_told(translator: LoadedModel, new_team: Team) -> None:
    source = translator.tokenizer.encode("a dog")
    writing = translator.requests.searched(source, 5, BeamConfig(2))
    assert len(list(new_team.search([writing] * 3))) == 3
    os.kill(next(iter(new_team.members.values())).pid, signal.SIGKILL)
    with pytest.raises(DataError, match="exit code -9"):
        list(new_team.search([writing] * 3))
    new_team.close()
    with pytest.raises(UsageError, match="is closed"):
        list(new_team.search([writing]))


def test_a_search_that_nobody_follows_is_ended_by_force(
    translator: LoadedModel, new_team: Team
) -> None:
    source = translator.tokenizer.encode("a dog")
    writing = translator.requests.searched(source, 20, BeamConfig(4))
    next(new_team.search([writing] * 2000))
    processes = list(new_team.members.values())
    new_team.close()
    assert all(process.exitcode is not None for process in processes)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_model_that_cannot_be_loaded_is_told(
    is_late: bool, tmp_path: Path, translator: LoadedModel
) -> None:
    source = translator.tokenizer.encode("a dog")
    with Team(tmp_path / "none", 1, "cpu") as team:
        if is_late:  # it has said so, and gone, before it is asked
            next(iter(team.members.values())).join()
        with pytest.raises((DataError, UsageError), match="none"):
            list(team.search([translator.requests.searched(source, 5, BeamConfig(1))]))


def test_it_does_not_draw(translator: LoadedModel, team: Team) -> None:
    with pytest.raises(UsageError, match="searches only"):
        translator.translate(["a dog"], team=team, temperature=1.0)


def test_a_team_of_nobody_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="0 workers"):
        Team(folder, 0)
