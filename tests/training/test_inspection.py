"""The data report, compared with files whose faults were put there."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from weft.cli.app import main
from weft.core.errors import DataError
from weft.training.data.files import TrainingFiles
from weft.training.data.inspection import inspect_files
from weft.training.run import run_training

from .material import files, recipe, write_pairs

WORDS = (
    "the:der a:ein man:mann woman:frau dog:hund runs:rennt eats:isst sees:sieht on:auf in:im "
    "red:rot green:gruen house:haus street:weg ball:kugel with:mit"
)
ENGLISH, GERMAN = zip(*(word.split(":") for word in WORDS.split()), strict=True)


def sentences(count: int) -> list[tuple[str, str]]:
    """Distinct sentences, word by word."""
    rng, pairs = random.Random(3), {}
    while len(pairs) < count:
        words = [rng.randrange(16) for _ in range(8)]
        source = " ".join(ENGLISH[word] for word in words)
        pairs[source] = " ".join(GERMAN[word] for word in words)
    return list(pairs.items())


def write(folder: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for path, side in zip(paths, (0, 1), strict=True):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return paths


def test_every_fault_is_counted(tmp_path: Path) -> None:
    clean = sentences(300)
    pairs = clean[:200]
    pairs += [(target, source) for source, target in clean[200:207]]
    pairs += [("", "nichts"), ("nothing", " "), ("", "")]
    pairs += clean[:5]
    pairs += [(source, source) for source, _ in clean[210:212]]
    pairs += [(f"{source} " * 9, target) for source, target in clean[220:224]]
    report = inspect_files(
        TrainingFiles(
            "translate", write(tmp_path, "train", pairs), write(tmp_path, "valid", clean[195:210])
        )
    )
    assert (report.lines, report.empty, report.duplicates) == (221, 3, 5)
    assert (report.identical, report.swapped, report.far) == (2, 7, 4)
    assert report.ratio is not None and 0.8 < report.ratio < 1.3
    assert (report.valid_lines, report.overlap) == (15, 5)
    text = " ".join(report.warnings())
    for part in (
        "3 pairs have an empty side",
        "5 pairs are duplicates",
        "spelling correction",
        "7 pairs look swapped",
        "4 pairs have lengths far",
        "5 of 15 validation",
    ):
        assert part in text


def test_clean_files_have_no_warnings(tmp_path: Path) -> None:
    clean = sentences(120)
    parts = write(tmp_path, "train", clean[:100]), write(tmp_path, "valid", clean[100:])
    assert inspect_files(TrainingFiles("translate", *parts)).warnings() == []


def test_spelling_correction_is_not_swapped(tmp_path: Path) -> None:
    """Both sides have the same words; most lines are equal."""
    rng = random.Random(1)
    lines = [source for source, _ in sentences(200)]
    pairs = [(s.replace("the", "teh") if rng.random() < 0.3 else s, s) for s in lines]
    report = inspect_files(TrainingFiles("translate", write(tmp_path, "train", pairs)))
    assert report.swapped == 0 and report.identical is not None and report.identical > 100


def test_text_has_lines_and_no_sides(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n\ntwo\none\n")
    (tmp_path / "b").write_text("two\nthree\n")
    report = inspect_files(TrainingFiles("lm", (tmp_path / "a",), (tmp_path / "b",)))
    assert (report.lines, report.empty, report.duplicates) == (4, 1, 1)
    assert report.identical is None and (report.valid_lines, report.overlap) == (2, 1)
    assert report.summary() == ("4 lines; 1 empty; 1 duplicates; 1 of 2 validation lines overlap")
    report.check(skip_limit=0.0)  # empty lines separate paragraphs


def test_check_prints_the_report_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = map(str, write_pairs(tmp_path))
    before = sorted(tmp_path.iterdir())
    arguments = ["train", "--pairs", source, target, "--check"]
    settings = ["--set", "train.steps=10", "--set", "train.schedule.warmup=400"]
    assert main([*arguments, *settings, "--json"]) == 0
    captured = capsys.readouterr()
    values = json.loads(captured.out)
    assert values["lines"] == 60 and "train.schedule.warmup is 400" in values["warnings"][-1]
    assert "warning: train.steps is 10 but train.schedule.warmup is 400" in captured.err
    assert main(arguments) == 0 and "60" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


def test_too_many_empty_pairs_are_refused_above_the_limit_only(tmp_path: Path) -> None:
    pairs = sentences(20) + [("", "x")] * 5
    damaged = TrainingFiles("translate", write(tmp_path, "train", pairs))
    with pytest.raises(
        DataError, match=r"5 of 25 pairs have an empty side: that is 20%, and train"
    ):
        run_training(recipe(), damaged, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_training(recipe(skip_limit=1, steps=1), damaged, tmp_path / "run")


def test_the_report_is_printed_before_training_and_on_resume(tmp_path: Path) -> None:
    lines: list[str] = []
    run_training(recipe(steps=2), files(tmp_path), tmp_path / "run", report=lines.append)
    assert lines[0].startswith("data: 60 pairs; 0 empty; ")
    assert any(line.startswith("warning: 60 of 60 validation pairs") for line in lines)
    again: list[str] = []
    run_training(recipe(steps=3), files(tmp_path), tmp_path / "run", report=again.append)
    assert again[0] == lines[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 4}, "train.steps is 4 but train.schedule.warmup is 4: the learning rate never"),
        ({"average": 3}, "the mean contains weights of the 4 steps of warmup"),
        ({"average": 5, "schedule": {"warmup": 0}}, "there are fewer checkpoints"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    changes: dict[str, object], sentence: str
) -> None:
    assert any(sentence in text for text in recipe(**changes).contradictions())
    assert list(recipe().contradictions()) == []
