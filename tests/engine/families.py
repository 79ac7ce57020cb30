"""The tokenizers of other people's models, small, loaded as they are loaded from a folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.text.hf.families import FAMILIES
from weft.text.hf import load_tokenizer
from weft.text.tokenizer import Tokenizer

WRITERS = sorted(set(FAMILIES) - {"bert cased", "bert uncased"})
"""WordPiece is glued with spaces by `decode`, and none of its models writes."""


@cache
def family(name: str) -> Tokenizer:
    """The same name gives the same object. Do not change it."""
    with TemporaryDirectory() as folder:
        return load_tokenizer(FAMILIES[name](Path(folder) / "m"))
