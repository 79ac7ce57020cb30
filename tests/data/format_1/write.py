"""Writes the files of this folder: `python write.py` with the Weft that is to be recorded.

Only the public API is used. See README.md.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import weft

LAYERS = {
    "width": 16,
    "num_layers": 1,
    "max_len": 32,
    "dropout": 0.0,
    "feedforward": {"kind": "swiglu", "width": 32},
    "norm": {"kind": "rmsnorm", "placement": "before"},
    "position": {"kind": "rotary"},
    "attention": {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1},
}
SETTINGS = {
    "batch_tokens": 256,
    "sample_len": 16,
    "optimiser": {"kind": "adamw", "lr": 0.02},
    "schedule": {"kind": "wsd", "warmup": 3, "decay": 0.3},
}
DATA = {"text": ["counting.txt"], "valid": ["counting.txt"]}
TOKENIZER = {"kind": "character", "vocab_size": 40, "byte_fallback": False}
MODEL = {
    "data": DATA,
    "model": LAYERS,
    "tokenizer": TOKENIZER,
    "train": {**SETTINGS, "steps": 300, "evaluate_every": 300},
}
RUN = {
    "data": DATA,
    "model": {**LAYERS, "dropout": 0.1},
    "tokenizer": TOKENIZER,
    "train": {**SETTINGS, "steps": 12, "save_every": 4, "evaluate_every": 4, "average": 2},
}
STOP = 6
"""The step after which the run is stopped: two steps after its last regular checkpoint."""
PROMPTS = ["3", "1 2", "8 9 0"]
CACHED = "2 3 4 5 6 7 8 9 0 1 2 3"
"""The prompt whose rows are in the cache file."""
FINISHED = ("metrics.jsonl", "model.safetensors", "scores.json")
"""Files of the finished run that are kept beside the stopped one."""


def main() -> None:
    os.chdir(Path(__file__).parent)
    counting = [" ".join(str((n + i) % 10) for i in range(6)) for n in range(10)]
    Path("counting.txt").write_text("\n".join(counting * 6) + "\n")
    write_model()
    write_run()


def write_model() -> None:
    """A model folder, a cache file of it, and what the model says."""
    shutil.rmtree("model", ignore_errors=True)
    weft.train(MODEL, "whole", device="cpu")
    Path("model").mkdir()
    for line in Path("whole", "SHA256SUMS").read_text().splitlines():
        shutil.move(Path("whole", line[66:]), "model")
    shutil.move(Path("whole", "SHA256SUMS"), "model")
    shutil.rmtree("whole")
    model = weft.load("model", device="cpu")
    texts = [model.generate(prompt, max_tokens=8, temperature=0) for prompt in PROMPTS]
    Path("expected.json").write_text(json.dumps(dict(zip(PROMPTS, texts, strict=True))) + "\n")
    model = weft.load("model", device="cpu")
    model.generate(CACHED, max_tokens=4, temperature=0)
    model.client.engine.save_cache(Path("model.cache"))


def write_run() -> None:
    """A run that SIGTERM ends after step STOP, and the last files of one that nothing ends."""
    shutil.rmtree("run", ignore_errors=True)
    weft.train(RUN, "whole", device="cpu")
    try:
        weft.train(RUN, "run", stop_at(STOP), device="cpu")
    except BaseException as stopped:
        assert type(stopped).__name__ == "StoppedBySignal", stopped
    Path("run", "finished").mkdir()
    for file in FINISHED:
        shutil.move(Path("whole", file), Path("run", "finished", file))
    shutil.rmtree("whole")


def stop_at(step):
    def watch(progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return watch


if __name__ == "__main__":
    main()
