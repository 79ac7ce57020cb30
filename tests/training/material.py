"""A tiny task and a tiny recipe: reverse a word. Small enough to train many times in a test."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from weft.training.data.files import TrainingFiles
from weft.training.recipe import Recipe


def recipe(**train: Any) -> Recipe:
    settings = {
        "steps": 12,
        "batch_tokens": 200,
        "save_every": 4,
        "evaluate_every": 4,
        "average": 2,
        "label_smoothing": 0.1,
        "optimiser": {"lr": 0.003},
        "schedule": {"warmup": 4},
        **train,
    }
    model = {"width": 16, "num_layers": 1, "max_len": 32, "dropout": 0.1}
    model |= {"attention": {"num_heads": 2}, "feedforward": {"kind": "relu", "width": 32}}
    tokenizer = {"kind": "bpe", "vocab_size": 300}
    return Recipe.from_dict({"model": model, "tokenizer": tokenizer, "train": settings})


def write_pairs(folder: Path, lines: int = 60) -> tuple[Path, Path]:
    rng = random.Random(5)
    words = ["".join(rng.choice("abcdef") for _ in range(rng.randint(2, 7))) for _ in range(lines)]
    source, target = folder / "words.src", folder / "words.tgt"
    source.write_text("".join(f"{word}\n" for word in words))
    target.write_text("".join(f"{word[::-1]}\n" for word in words))
    return source, target


def files(folder: Path) -> TrainingFiles:
    pairs = write_pairs(folder)
    return TrainingFiles("translate", pairs, pairs)
