"""Lines to train small tokenizers on: many scripts, numbers, code, runs of spaces."""

from __future__ import annotations

from ..hard_texts import hard_texts

LINES = [line for line in hard_texts(1600, seed=5) if line.strip()] + [
    "the quick brown fox jumps over the lazy dog and the cat that sat on the mat",
    "they're not what we've seen, I'll say; don't you'd think it's 1234567 or 89?",
    "for i in range(10):\n    print(i, i ** 2)\n\n    return   None",
] * 5


def western(lines: list[str]) -> list[str]:
    """Lines of few letters, without line ends, as SentencePiece wants them; other scripts are then
    bytes, or unknown."""
    flat = [" ".join(line.split()) for line in lines]
    return [line for line in flat if line and all(ord(letter) < 0x180 for letter in line)]
