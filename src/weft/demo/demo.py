"""The demo without its output: data files, recipe, and evaluation of the trained model.

    write_dates    train.src .tgt   valid.src .tgt   test.src .tgt .lang   dates.json
    demo_recipe    recipes/dates.toml with a seed and a number of steps
    evaluate       the model's answers to the test dates

Line n of .src is a written date, of .tgt its ISO form, of .lang its locale: plain files that
`weft train --pairs` reads. dates.json records the seed and the sizes. It is written last: if it
exists, the other files are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from weft.checkpoint.atomic import write_file
from weft.checkpoint.folder_files import write_json
from weft.core.config import read_settings, with_overrides
from weft.core.errors import DataError, UsageError
from weft.demo.dates import DatePair, DateTask, PartName
from weft.engine.loaded_model import LoadedModel
from weft.text.corpus import read_lines
from weft.training.data.files import TrainingFiles
from weft.training.recipe import Recipe

RECIPE = "dates.toml"
ORIGIN = "dates.json"
PARTS: tuple[PartName, ...] = ("train", "valid", "test")
NUM_TRAIN, NUM_VALID, NUM_TEST = 60_000, 500, 2_000
MAX_TOKENS = 15
"""Maximum number of tokens of an answer: an ISO date has 10, and the end token."""


class DateAnswer(NamedTuple):
    """A test date and the model's answer."""

    language: str
    written: str
    expected: str
    answer: str

    @property
    def is_correct(self) -> bool:
        return self.answer == self.expected


def write_dates(
    folder: Path, num_train: int, num_valid: int = 1000, num_test: int = 2000, seed: int = 1
) -> None:
    """Write the three parts of the task; equal sizes and seed give equal bytes.

    Existing files are kept; files of another seed or size are an error.
    """
    origin = {"seed": seed, "train": num_train, "valid": num_valid, "test": num_test}
    if is_written(folder, origin):
        return
    folder.mkdir(parents=True, exist_ok=True)
    task = DateTask()
    for part in PARTS:
        write_part(folder, part, list(task.pairs(part, origin[part], seed)))
    write_json(folder / ORIGIN, origin)


def is_written(folder: Path, origin: Mapping[str, int]) -> bool:
    """Whether the folder holds the files of this seed and these sizes."""
    if not (folder / ORIGIN).is_file():
        return False
    existing = read_settings(folder / ORIGIN)
    if existing != origin:
        raise UsageError(
            f"{folder} holds dates made from {existing}, but {origin} is asked for. Use the old "
            "sizes and seed, or another folder."
        )
    return True


def write_part(folder: Path, part: PartName, pairs: list[DatePair]) -> None:
    write_lines(folder / f"{part}.src", [pair.written for pair in pairs])
    write_lines(folder / f"{part}.tgt", [pair.iso for pair in pairs])
    if part == "test":
        write_lines(folder / "test.lang", [pair.tag for pair in pairs])


def write_lines(path: Path, lines: list[str]) -> None:
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def demo_files(folder: Path) -> TrainingFiles:
    """Training and validation files of the demo."""
    train, valid = (
        tuple(folder / f"{part}.{side}" for side in ("src", "tgt")) for part in ("train", "valid")
    )
    return TrainingFiles("translate", train, valid)


def demo_recipe(seed: int, steps: int | None) -> Recipe:
    """recipes/dates.toml with a seed and, unless None, a number of steps."""
    path = recipe_path()
    changes = {"train.seed": seed} | ({} if steps is None else {"train.steps": steps})
    return Recipe.from_dict(with_overrides(read_settings(path), changes, Recipe), str(path))


def recipe_path() -> Path:
    """The recipe in the installed package, or in the repository."""
    package = Path(__file__).resolve().parents[1]
    candidates = [package / "recipes" / RECIPE, package.parents[1] / "recipes" / RECIPE]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise DataError("the recipe of the demo is missing. Install Weft again.", candidates[-1])
    return path


def evaluate(model: LoadedModel, data: Path) -> list[DateAnswer]:
    """The model's answers to the test dates."""
    languages, written, expected = (
        list(read_lines(data / f"test.{name}")) for name in ("lang", "src", "tgt")
    )
    answers = model.translate(written, max_tokens=MAX_TOKENS)
    rows = zip(languages, written, expected, answers, strict=True)
    return [DateAnswer(*row) for row in rows]
