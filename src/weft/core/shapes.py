"""Shape suffixes: the name of a tensor ends in the letters of its dimensions, checked in tests.

    check_shapes(x_BTD=x, mask_BT=mask, D=768)   # B and T must agree, D must be 768

LETTERS is the key for the whole project; new letters are added here first.
"""

from __future__ import annotations

import os

from torch import Tensor

LETTERS = {
    "B": "batch",
    "T": "new tokens (queries)",
    "S": "all key positions",
    "D": "model width",
    "H": "query heads",
    "K": "key/value heads",
    "G": "query heads per key/value head",
    "C": "head dimension",
    "U": "value head dimension, where it differs from C",
    "A": "latent width of compressed keys and values",
    "J": "head dimension without the rotary part",
    "O": "rotary part of the head dimension",
    "F": "feed-forward width",
    "V": "vocabulary",
    "L": "layers",
    "M": "entries of a position table (distances or buckets)",
    "N": "packed tokens",
    "P": "pages",
    "R": "rows of a page",
    "E": "experts",
    "W": "beam width",
    "X": "candidates of a beam search step",
}

CHECKING = os.environ.get("WEFT_CHECK") == "1"


def letters_of(name: str) -> str:
    """The dimension letters at the end of a tensor's name: 'x_BTD' -> 'BTD'."""
    letters = name.rsplit("_", 1)[-1]
    unknown = [letter for letter in letters if letter not in LETTERS]
    assert not unknown, f"{name}: {unknown} not in the letter key of core/shapes.py"
    return letters


def check_shapes(**named: Tensor | int) -> None:
    """Assert that every letter has one size in all tensors. Does nothing unless WEFT_CHECK=1."""
    if not CHECKING:
        return
    bound = {name: (value, "argument") for name, value in named.items() if isinstance(value, int)}
    for name, tensor in named.items():
        if isinstance(tensor, Tensor):
            bind_letters(name, tensor, bound)


def bind_letters(name: str, tensor: Tensor, bound: dict[str, tuple[int, str]]) -> None:
    """Compare one tensor with the sizes bound so far, and bind its new letters."""
    letters, shape = letters_of(name), tuple(tensor.shape)
    assert len(shape) == len(letters), (
        f"{name}: shape {shape} has {len(shape)} dimensions, expected {len(letters)}"
    )
    for letter, size in zip(letters, shape, strict=True):
        expected, source = bound.setdefault(letter, (size, name))
        assert size == expected, (
            f"{name}: {letter} is {size}, expected {expected} ({LETTERS[letter]}, from {source})"
        )
