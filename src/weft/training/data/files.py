"""The training and validation files of a run: their pairs or texts, and their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from weft.core.errors import DataError, UsageError
from weft.text.corpus import read_columns, read_lines, read_pairs

Task = Literal["translate", "lm", "mlm"]
Pair = tuple[str, str]
STDIN = Path("-")


@dataclass(frozen=True)
class TrainingFiles:
    """The files of a run. Pairs: (source, target), or one TSV with `columns`. Text: any number."""

    task: Task
    train: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    columns: tuple[int, int] | None = None
    languages: tuple[str, str] | None = None
    """Codes of source and target, stored with the model; no part of the fingerprint."""

    def __post_init__(self) -> None:
        if not self.train:
            raise UsageError("there are no training files. Give --pairs SRC TGT, --tsv or --text.")
        if self.columns is not None and min(self.columns) < 1:
            raise UsageError(
                f"columns are {self.columns[0]} and {self.columns[1]}: they are counted from 1. "
                "Use for example 1 and 2."
            )
        num_expected = 1 if self.columns else 2
        for name, paths in (("training", self.train), ("validation", self.valid)):
            if self.task == "translate" and paths and len(paths) != num_expected:
                raise UsageError(
                    f"{len(paths)} {name} files but pairs need {num_expected} here: a source and a "
                    "target file, or one TSV with its columns."
                )

    def pairs(self, part: Literal["train", "valid"]) -> Iterator[Pair]:
        """Iterate over the pairs of a part; errors name file and line."""
        paths = self.train if part == "train" else self.valid
        if not paths:
            return
        if self.columns is not None:
            yield from ((row[0], row[1]) for row in read_columns(paths[0], self.columns))
        else:
            yield from read_pairs(paths[0], paths[1])

    def texts(self, part: Literal["train", "valid"], unit: Literal["line", "file"]) -> list[str]:
        """The documents of a part: its lines, or its whole files."""
        paths = self.train if part == "train" else self.valid
        lines = [list(read_lines(path)) for path in paths]
        if unit == "file":
            return ["\n".join(each) + "\n" for each in lines]
        return [line for each in lines for line in each]

    def tokenizer_lines(self) -> Iterator[str]:
        """Every line of the training files; validation files are not used for the tokenizer."""
        if self.columns is not None:
            for row in read_columns(self.train[0], self.columns):
                yield from row
            return
        for path in self.train:
            yield from read_lines(path)

    def check_regular(self) -> None:
        """A UsageError for standard input and pipes: a run reads its files several times."""
        for path in (*self.train, *self.valid):
            is_stream = path.exists() and not (path.is_file() or path.is_dir())
            if path == STDIN or is_stream:
                raise UsageError(
                    f"{path} is not a regular file: a run reads its files several times, also when "
                    "it is resumed. Write the text to a file, and name that."
                )

    def fingerprint(self) -> dict[str, Any]:
        """Task, columns and SHA-256 of the files: a run is not resumed on other contents."""
        parts = {"train": self.train, "valid": self.valid}
        hashes = {name: [sha256_of(path) for path in paths] for name, paths in parts.items()}
        return {"task": self.task, "columns": self.columns and list(self.columns), **hashes}


def sha256_of(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError("there is no such file. Check the path.", path) from None
    except IsADirectoryError:
        raise DataError("this is a folder, not a text file. Name a file in it.", path) from None
