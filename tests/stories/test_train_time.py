"""`weft train --time` by the clock on the wall, and the recipe that repeats the run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file


def write_numbers(folder: Path, num_pairs: int = 4000) -> tuple[str, str]:
    """Pairs of numbers in words and in digits."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    rng = random.Random(3)
    numbers = [[rng.randrange(10) for _ in range(rng.randint(3, 8))] for _ in range(num_pairs)]
    source, target = folder / "numbers.words", folder / "numbers.digits"
    source.write_text("".join(" ".join(words[d] for d in each) + "\n" for each in numbers))
    target.write_text("".join("".join(map(str, each)) + "\n" for each in numbers))
    return str(source), str(target)


def train(*arguments: str) -> tuple[float, str]:
    """Seconds by the clock on the wall, and what was written to standard error."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "weft", "train", *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1000)
    return time.monotonic() - begin, result.stderr


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1000)
def test_a_run_ends_in_time_with_its_scores_and_can_be_repeated(tmp_path: Path) -> None:
    files = ["--pairs", *write_numbers(tmp_path)]
    out, again = tmp_path / "run", tmp_path / "again"
    seconds, text = train(*files, "--time", "2m", "--out", str(out), "--set", "train.patience=none")
    assert 0.85 * 120 <= seconds <= 1.05 * 120, seconds
    assert "parameters, width 128" in text and "steps of 1,024 tokens" in text
    scores = json.loads((out / "scores.json").read_text())
    assert scores["valid"]["exact_match"] > 0.5
    train(str(out / "recipe.json"), *files, "--out", str(again))
    one, other = (load_file(folder / "model.safetensors") for folder in (out, again))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
