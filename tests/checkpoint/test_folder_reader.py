"""Readers of a folder whose files are replaced meanwhile get all old files or all new ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
import torch

from tests.engine.tiny import LINES, tiny
from weft.checkpoint import weft_folder
from weft.checkpoint.atomic import replaced_files
from weft.checkpoint.folder_reader import MAX_READS, read_consistently
from weft.checkpoint.verification import verify
from weft.checkpoint.weft_folder import (
    SCORES_FILE,
    Checkpoint,
    load_folder,
    read_folder,
    save_folder,
)
from weft.core.errors import DataError
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

NAMES = ("a", "b")
NUM_LOADS = 200
ROOT = Path(__file__).parents[2]


def write(folder: Path, text: str) -> None:
    with replaced_files(folder, last="b") as new:
        for name in NAMES:
            (new / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "old")
    return tmp_path


def test_files_that_are_replaced_while_they_are_read_are_read_again(folder: Path) -> None:
    contents: list[list[str]] = []

    def read(place: Path) -> list[str]:
        first = (place / "a").read_text()
        if not contents:
            write(folder, "new")
        contents.append([first, (place / "b").read_text()])
        return contents[-1]

    assert read_consistently(folder, NAMES, read) == ["new", "new"]
    assert contents == [["old", "new"], ["new", "new"]]


def test_an_error_is_raised_unless_the_files_were_replaced(folder: Path) -> None:
    reads = count()

    def read(place: Path) -> str:
        if next(reads) == 0:
            write(folder, "new")
            raise DataError("the files of two models", place)
        return (place / "a").read_text()

    assert read_consistently(folder, NAMES, read) == "new"
    with pytest.raises(FileNotFoundError, match="absent"):
        read_consistently(folder, NAMES, lambda place: (place / "absent").read_text())
    assert next(reads) == 2


def test_other_files_of_the_folder_may_change(folder: Path) -> None:
    reads = count()

    def read(place: Path) -> str:
        (folder / f"lock {next(reads)}").write_text("1")
        return (place / "a").read_text()

    assert read_consistently(folder, NAMES, read) == "old" and next(reads) == 1


def test_a_folder_that_is_always_replaced_is_one_sentence(folder: Path) -> None:
    reads = count()
    with pytest.raises(DataError, match=f"replaced .* in each of {MAX_READS} attempts"):
        read_consistently(folder, NAMES, lambda place: write(folder, f"{next(reads)}"))
    assert next(reads) == MAX_READS


def model(number: int) -> Checkpoint:
    """Two models of equal shapes; all of their files differ, and only one has a template."""
    lines = [f"{line} {'xyz'[number] * 9}" for line in LINES] * 3
    tokenizer = Tokenizer.train(lines, TokenizerConfig(kind="bpe", vocab_size=270))
    scores, template = {"number": number}, "{{ messages }}" if number else None
    weights = tiny("decoder", seed=number).model
    return Checkpoint(weights, tokenizer, ("lm", "mlm")[number], scores, chat_template=template)


def describe(checkpoint: Checkpoint) -> tuple[object, ...]:
    weights = [tensor.double().sum().item() for tensor in checkpoint.model.parameters()]
    tokenizer = checkpoint.tokenizer.backend.to_str()
    return weights, tokenizer, checkpoint.task, checkpoint.scores, checkpoint.chat_template


def alternate(path: str) -> None:
    """Save two models in turn, until the file `stop` exists."""
    models, folder = [model(0), model(1)], Path(path)
    for number in count():
        save_folder(folder, models[number % 2])
        if (folder / "stop").exists():
            (folder / "stop").write_text(f"{number + 1}")
            return


def test_a_model_without_a_template_removes_that_of_the_model_before(tmp_path: Path) -> None:
    for number in (1, 0):
        save_folder(tmp_path, model(number))
        assert describe(load_folder(tmp_path)) == describe(model(number))
        assert {check.result for check in verify(tmp_path)} == {"ok"}


@pytest.mark.slow
@pytest.mark.alone  # a reader that is much slower than the writer gives up
@pytest.mark.timeout(300)
def test_a_reader_never_gets_the_files_of_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_reads = Counter[str]()

    def counted(path: Path, device: torch.device | str) -> Checkpoint:
        num_reads["model"] += 1
        return read_folder(path, device)

    monkeypatch.setattr(weft_folder, "read_folder", counted)
    expected = [describe(model(number)) for number in (0, 1)]
    code = (
        f"from tests.checkpoint.test_folder_reader import alternate; alternate({str(tmp_path)!r})"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not (tmp_path / SCORES_FILE).exists():
        assert writer.poll() is None, "the writer failed"
        time.sleep(0.1)
    try:
        loaded = Counter(expected.index(describe(load_folder(tmp_path))) for _ in range(NUM_LOADS))
        for _ in range(NUM_LOADS):
            assert {check.result for check in verify(tmp_path)} == {"ok"}
        assert writer.poll() is None, "the writer failed"
    finally:
        (tmp_path / "stop").touch()
        assert writer.wait(timeout=60) == 0
    num_saves = (tmp_path / "stop").read_text()
    print(f"{loaded} of {num_reads} reads during {num_saves} saves")
    assert loaded.keys() == {0, 1} and num_reads["model"] > NUM_LOADS
