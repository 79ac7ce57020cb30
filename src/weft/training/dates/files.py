"""Pairs -> plain files, which `weft train --pairs` reads as well as any others.

    train.src  train.tgt    valid.src  valid.tgt    test.src  test.tgt    test.lang    dates.json

One line a pair; line n of .src is written, of .tgt is the ISO date, of .lang the locale. dates.json
says what they were made from; it comes last, so that where it is, the rest is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from weft.checkpoint.atomic import write_file
from weft.checkpoint.weft_folder import write_json
from weft.core.config import read_settings
from weft.core.errors import UsageError
from weft.training.dates.pairs import DatePair, DateTask, PartName

ORIGIN = "dates.json"
PARTS: tuple[PartName, ...] = ("train", "valid", "test")


def write_dates(
    folder: Path, num_train: int, num_valid: int = 1000, num_test: int = 2000, seed: int = 1
) -> None:
    """Write the three parts of the task; the same numbers and seed give the same bytes.

    Files that are there already are kept; made from another seed or number, they are an error.
    """
    numbers = (num_train, num_valid, num_test)
    origin: dict[str, int] = {"seed": seed}
    origin.update(zip(PARTS, numbers, strict=True))
    if is_written(folder, origin):
        return
    folder.mkdir(parents=True, exist_ok=True)
    task = DateTask()
    for part, number in zip(PARTS, numbers, strict=True):
        write_part(folder, part, list(task.pairs(part, number, seed)))
    write_json(folder / ORIGIN, origin)


def is_written(folder: Path, wanted: Mapping[str, int]) -> bool:
    """Whether these very files are there."""
    if not (folder / ORIGIN).is_file():
        return False
    found = read_settings(folder / ORIGIN)
    if found != wanted:
        raise UsageError(
            f"{folder} holds dates made from {found}, but {wanted} is asked for. Use the old "
            "numbers and seed, or another folder."
        )
    return True


def write_part(folder: Path, part: PartName, pairs: list[DatePair]) -> None:
    write_lines(folder / f"{part}.src", [pair.written for pair in pairs])
    write_lines(folder / f"{part}.tgt", [pair.iso for pair in pairs])
    if part == "test":
        write_lines(folder / "test.lang", [pair.tag for pair in pairs])


def write_lines(path: Path, lines: list[str]) -> None:
    write_file(path, "".join(f"{line}\n" for line in lines).encode())
