"""Writes the files of this folder: `python write.py` with the Weft that is to be recorded.

Only `weft.train` and `weft.load` are used. See README.md for the commit that wrote them.
"""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import weft

FAST = {
    "optimiser": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "wsd", "warmup": 20, "decay": 0.3},
}
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
LAYERS = {
    "feedforward": {"kind": "swiglu", "width": 32},
    "norm": {"kind": "rmsnorm", "placement": "before"},
    "position": {"kind": "rotary"},
}
MODELS = {
    "translator": {
        "data": {"pairs": ["words.txt", "digits.txt"]},
        "model": {
            **LAYERS,
            "width": 32,
            "num_layers": 1,
            "max_len": 32,
            "dropout": 0.0,
            "attention": {"kind": "mha", "num_heads": 4},
        },
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "train": {**FAST, "steps": 300, "batch_tokens": 256},
    },
    "decoder": {
        "data": {"text": ["counting.txt"]},
        "model": {
            **LAYERS,
            "width": 32,
            "num_layers": 1,
            "max_len": 32,
            "dropout": 0.0,
            "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2},
        },
        "tokenizer": {"kind": "character", "vocab_size": 40, "byte_fallback": False},
        "train": {**FAST, "steps": 300, "batch_tokens": 256, "sample_len": 16},
    },
}
SHORT = {
    "steps": 12,
    "save_every": 4,
    "evaluate_every": 4,
    "average": 2,
    "optimiser": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "wsd", "warmup": 3, "decay": 0.3},
}
RUNS = {
    "pairs_run": {
        "data": {
            "pairs": ["words.txt", "digits.txt"],
            "valid": ["valid.words.txt", "valid.digits.txt"],
        },
        "model": {
            **LAYERS,
            "width": 16,
            "num_layers": 1,
            "max_len": 32,
            "dropout": 0.2,
            "attention": {"kind": "mqa", "num_heads": 2, "dropout": 0.1},
            "embedding": {"tied": "all"},
        },
        "tokenizer": {"kind": "bpe", "vocab_size": 60, "byte_fallback": False},
        "train": {**SHORT, "batch_tokens": 64, "rdrop": 2.0, "bpe_dropout": 0.2, "patience": 3},
    },
    "text_run": {
        "data": {"text": ["words.txt"], "valid": ["valid.words.txt"]},
        "model": {
            **LAYERS,
            "width": 16,
            "num_layers": 1,
            "max_len": 32,
            "attention": {"kind": "mla", "num_heads": 2},
        },
        "tokenizer": {"kind": "character", "vocab_size": 40, "byte_fallback": False},
        "train": {
            **SHORT,
            "batch_tokens": 128,
            "accumulate": 2,
            "optimiser": {"kind": "muon", "lr": 0.01},
        },
    },
}
STOP = 6
"""The step after which a run is stopped: two steps after its last regular checkpoint."""
FINISHED = ("metrics.jsonl", "model.safetensors", "scores.json")
"""Files of a finished run that are kept beside the stopped one."""


def main() -> None:
    os.chdir(Path(__file__).parent)
    write_corpus()
    for name, recipe in MODELS.items():
        shutil.rmtree(name, ignore_errors=True)
        weft.train(recipe, name, device="cpu")
        for file in ("run.json", "metrics.jsonl"):
            Path(name, file).unlink()
        shutil.rmtree(Path(name, "checkpoints"))
    for name, recipe in RUNS.items():
        write_run(name, recipe)
    Path("expected.json").write_text(json.dumps(expected(), indent=1) + "\n")


def write_corpus() -> None:
    """Numbers of one and two digits in words and in digits, every seventh for validation too, and
    lines that count on from each digit."""
    numbers = [n for length in (1, 2) for n in itertools.product(range(10), repeat=length)]
    for part, chosen in (("", numbers), ("valid.", numbers[::7])):
        words = [" ".join(DIGITS[digit] for digit in number) for number in chosen]
        digits = [" ".join(map(str, number)) for number in chosen]
        Path(f"{part}words.txt").write_text("\n".join(words) + "\n")
        Path(f"{part}digits.txt").write_text("\n".join(digits) + "\n")
    counting = [" ".join(str((n + i) % 10) for i in range(6)) for n in range(10)]
    Path("counting.txt").write_text("\n".join(counting * 6) + "\n")


def write_run(name: str, recipe: dict) -> None:
    """A run that SIGTERM ends after step STOP, and the last files of one that nothing ends."""
    shutil.rmtree(name, ignore_errors=True)
    whole = Path(f"{name}_whole")
    weft.train(recipe, whole, device="cpu")
    try:
        weft.train(recipe, name, stop_at(STOP), device="cpu")
    except BaseException as stopped:
        assert type(stopped).__name__ == "StoppedBySignal", stopped
    Path(name, "finished").mkdir()
    for file in FINISHED:
        shutil.move(whole / file, Path(name, "finished", file))
    shutil.rmtree(whole)


def stop_at(step):
    def watch(progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


def expected() -> dict:
    """What the two models say."""
    sources = ["three", "one four", "nine zero"]
    prompts = ["3", "1 2", "8 9 0"]
    translator, decoder = weft.load("translator"), weft.load("decoder")
    return {
        "sources": sources,
        "greedy": translator.translate(sources),
        "beam": translator.translate(sources, beam=4),
        "prompts": prompts,
        "generated": [decoder.generate(p, max_tokens=8, temperature=0) for p in prompts],
    }


if __name__ == "__main__":
    main()
