"""The data report: training and validation files of a run -> counts of likely problems.

    lines, empty, duplicates       of the training lines, or pairs of lines
    identical, swapped             pairs with two equal sides; pairs whose sides look exchanged
    length ratio                   median of target by source length in characters, and how many
                                   pairs are far from it
    overlap                        validation lines that are training lines too

A pair looks swapped if the words of its source occur mostly on the target side of the other pairs,
and those of its target on the source side. Lines are kept as hashes of 8 bytes, so that a large
corpus fits into memory; words are counted in the first SAMPLE pairs only.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import DataError
from weft.text.corpus import read_lines
from weft.training.data.files import Pair, TrainingFiles

SAMPLE = 100_000
FAR = 4.0
"""A pair is far from the median ratio if its own is larger or smaller by this factor."""
MIN_CHARACTERS = 20
"""Shorter pairs have no meaningful ratio."""
SWAPPED = 1.0
"""Mean log-odds of a word from which on a pair looks swapped."""
MIN_SHARE = 0.01
"""Share of lines from which on duplicates and unusual lengths are worth a warning."""
STEP_LINES = 1000
CountLines = Callable[[int], None]


@dataclass(frozen=True)
class DataReport:
    """The result of `inspect_files`. None: does not apply to these files."""

    lines: int
    empty: int
    duplicates: int
    identical: int | None = None
    swapped: int | None = None
    ratio: float | None = None
    far: int | None = None
    valid_lines: int = 0
    overlap: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataReport:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def unit(self) -> str:
        return "lines" if self.identical is None else "pairs"

    def summary(self) -> str:
        """The numbers in one line."""
        parts = [
            f"{self.lines:,} {self.unit}",
            f"{self.empty:,} empty",
            f"{self.duplicates:,} duplicates",
        ]
        if self.identical is not None:
            parts += [f"{self.identical:,} with identical sides", f"{self.swapped:,} swapped"]
        if self.ratio is not None:
            parts.append(f"length ratio {self.ratio:.2f} ({self.far:,} far from it)")
        if self.overlap is not None:
            parts.append(f"{self.overlap:,} of {self.valid_lines:,} validation {self.unit} overlap")
        return "; ".join(parts)

    def warnings(self) -> list[str]:
        """One sentence for each thing that the user should look at."""
        unit, total, result = self.unit, max(1, self.lines), []
        if self.identical is not None and self.empty:
            result.append(f"{self.empty:,} pairs have an empty side and are skipped")
        if self.duplicates > MIN_SHARE * total:
            result.append(
                f"{self.duplicates:,} {unit} are duplicates ({self.duplicates / total:.0%})"
            )
        if self.identical:
            result.append(
                f"{self.identical:,} pairs have two identical sides: normal in spelling "
                "correction, otherwise often text that was not translated"
            )
        if self.swapped:
            result.append(
                f"{self.swapped:,} pairs look swapped: their source is like the other targets, and "
                "their target like the other sources"
            )
        if self.far and self.far > MIN_SHARE * total:
            result.append(f"{self.far:,} pairs have lengths far from the ratio {self.ratio:.2f}")
        if self.overlap:
            result.append(
                f"{self.overlap:,} of {self.valid_lines:,} validation {unit} are in the training "
                "files too: validation scores will be better than those on new text"
            )
        return result

    def check(self, skip_limit: float) -> None:
        """A DataError if too many pairs would be skipped."""
        if self.identical is None or self.empty <= skip_limit * self.lines:
            return
        raise DataError(
            f"{self.empty} of {self.lines} pairs have an empty side: that is "
            f"{self.empty / self.lines:.0%}, and train.skip_limit allows {skip_limit:.0%}. Clean "
            "the files, or raise the limit."
        )


def inspect_files(files: TrainingFiles, count: CountLines = lambda number: None) -> DataReport:
    """Read all files of a run once. `count` receives the number of lines read so far."""
    if files.task != "translate":
        lines = (line for path in files.train for line in read_lines(path))
        hashes, empty = hash_lines(((line,) for line in lines), count)
        valid = [(line,) for path in files.valid for line in read_lines(path)]
        return DataReport(
            **numbers(hashes, empty, len(hashes) + empty), **overlap(hashes, valid, files)
        )
    sample = PairSample()
    hashes, empty = hash_lines(sample.watch(files.pairs("train")), count)
    total = numbers(hashes, empty, len(hashes) + empty)
    return DataReport(**total, **sample.numbers(), **overlap(hashes, files.pairs("valid"), files))


def numbers(hashes: NDArray[np.uint64], empty: int, lines: int) -> dict[str, int]:
    return {
        "lines": lines,
        "empty": empty,
        "duplicates": len(hashes) - len(np.unique(hashes)),
    }


def overlap(
    hashes: NDArray[np.uint64], valid: Iterable[tuple[str, ...]], files: TrainingFiles
) -> dict[str, int]:
    """How many validation lines there are, and how many of them are training lines."""
    if not files.valid:
        return {}
    valid_hashes, empty = hash_lines(valid, lambda number: None)
    is_in = int(np.isin(valid_hashes, hashes).sum())
    return {"valid_lines": len(valid_hashes) + empty, "overlap": is_in}


def hash_lines(
    rows: Iterable[tuple[str, ...]], count: CountLines
) -> tuple[NDArray[np.uint64], int]:
    """(a hash of each row, the number of rows with an empty part, which have none)."""
    hashes, empty = array("Q"), 0
    for number, row in enumerate(rows, start=1):
        if all(map(str.strip, row)):
            digest = hashlib.blake2b("\n".join(row).encode(), digest_size=8).digest()
            hashes.append(int.from_bytes(digest, "little"))
        else:
            empty += 1
        if number % STEP_LINES == 0:
            count(number)
    return np.frombuffer(hashes, dtype=np.uint64) if hashes else np.zeros(0, np.uint64), empty


class PairSample:
    """Counts on pairs that pass by: all of them, and the words of the first ones."""

    def __init__(self) -> None:
        self.identical = 0
        self.log_ratios = array("f")
        self.pairs: list[tuple[list[str], list[str]]] = []
        self.counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def watch(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Pass the pairs on."""
        for pair in pairs:
            source, target = pair[0].strip(), pair[1].strip()
            if source and target:
                self.add(source, target)
            yield pair

    def add(self, source: str, target: str) -> None:
        self.identical += source == target
        if len(source) + len(target) >= MIN_CHARACTERS:
            self.log_ratios.append(math.log(len(target) / len(source)))
        if len(self.pairs) < SAMPLE:
            sides = source.lower().split(), target.lower().split()
            self.pairs.append(sides)
            for counter, words in zip(self.counts, sides, strict=True):
                counter.update(words)

    def numbers(self) -> dict[str, Any]:
        swapped = sum(self.is_swapped(*pair) for pair in self.pairs)
        values: dict[str, Any] = {"identical": self.identical, "swapped": swapped}
        if self.log_ratios:
            ratios = np.frombuffer(self.log_ratios, dtype=np.float32)
            median = float(np.median(ratios))
            far = int((np.abs(ratios - median) > math.log(FAR)).sum())
            values |= {"ratio": round(math.exp(median), 4), "far": far}
        return values

    def is_swapped(self, source: list[str], target: list[str]) -> bool:
        """Whether the words of both sides occur mostly on the other side of the other pairs."""
        if source == target:
            return False
        odds = [
            self.odds(words, side, source, target) for side, words in enumerate((source, target))
        ]
        return min(odds) > SWAPPED

    def odds(self, words: list[str], side: int, source: list[str], target: list[str]) -> float:
        """Mean log-odds of the words of a side to be on the other one, by the other pairs."""
        here, there = self.counts[side], self.counts[1 - side]
        in_here = Counter(source if side == 0 else target)
        in_there = Counter(target if side == 0 else source)
        total = sum(
            math.log((there[word] - in_there[word] + 1) / (here[word] - in_here[word] + 1))
            for word in words
        )
        return total / max(1, len(words))
