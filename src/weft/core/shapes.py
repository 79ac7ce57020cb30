"""The letter key, and shapes that run: a tensor's name ends in its dimensions, and is held to them.

    check_shapes(x_BTD=x, mask_BT=mask, D=768)   # T must agree between the two, D must be 768

One key for the whole project. A letter that is not here is added here first.
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
    "C": "head size",
    "U": "value head size, where it differs from C",
    "A": "latent width of compressed keys and values",
    "J": "head size without its rotary part",
    "O": "rotary part of a head",
    "F": "feed-forward width",
    "V": "vocabulary",
    "L": "layers",
    "M": "entries of a position table (distances or buckets)",
    "N": "packed tokens",
    "P": "pages",
    "R": "rows in a page",
    "E": "experts",
    "W": "beams of a sentence",
    "X": "candidates of a step",
}

CHECKING = os.environ.get("WEFT_CHECK") == "1"


def letters_of(name: str) -> str:
    """The dimension letters at the end of a tensor's name: 'x_BTD' -> 'BTD'."""
    letters = name.rsplit("_", 1)[-1]
    unknown = [letter for letter in letters if letter not in LETTERS]
    assert not unknown, f"{name}: {unknown} not in the letter key of core/shapes.py"
    return letters


def check_shapes(**named: Tensor | int) -> None:
    """Bind each letter once per call; every tensor must agree. Does nothing unless WEFT_CHECK=1."""
    if not CHECKING:
        return
    bound = {name: (value, "given") for name, value in named.items() if isinstance(value, int)}
    for name, tensor in named.items():
        if isinstance(tensor, Tensor):
            bind_letters(name, tensor, bound)


def bind_letters(name: str, tensor: Tensor, bound: dict[str, tuple[int, str]]) -> None:
    """Compare one tensor with the sizes bound so far, and bind the letters it brings."""
    letters, shape = letters_of(name), tuple(tensor.shape)
    assert len(shape) == len(letters), (
        f"{name}: shape {shape} has {len(shape)} dimensions, expected {len(letters)}"
    )
    for letter, size in zip(letters, shape, strict=True):
        expected, source = bound.setdefault(letter, (size, name))
        assert size == expected, (
            f"{name}: {letter} is {size}, expected {expected} ({LETTERS[letter]}, from {source})"
        )
