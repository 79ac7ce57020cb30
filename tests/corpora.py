"""Corpora of docs/data.md, in the folder $WEFT_DATA or data/; tests without theirs are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def corpus_folder() -> Path:
    """$WEFT_DATA; by default the folder data/ of the repository."""
    return Path(os.environ.get("WEFT_DATA") or ROOT / "data")


def corpus(name: str) -> Path:
    """A file such as tinyshakespeare/input.txt. Skips the test if it is not there."""
    path = corpus_folder() / name
    if not path.exists():
        pytest.skip(f"needs {name} in {corpus_folder()}: docs/data.md says where to get it")
    return path
