"""Tiny models that `weft convert --to hf` can write, and a cache for what is written."""

from pathlib import Path

import pytest

from weft.checkpoint.pulled_models import cache_folder

GPT2 = {"attention": {"num_heads": 4, "bias": True}, "position": {"kind": "learned"}}
MARIAN = {
    "attention": {"num_heads": 4, "bias": True},
    "position": {"kind": "sinusoidal", "layout": "halves"},
    "feedforward": {"kind": "relu", "width": 64, "bias": True},
    "norm": {"kind": "layernorm", "placement": "after"},
    "embedding": {"tied": "all", "scale": True},
    "head": {"bias": True},
}


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for a test; the compiled kernels are those that are there already."""
    kernels = cache_folder() / "native"
    kernels.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "native").symlink_to(kernels.absolute())
    monkeypatch.setenv("WEFT_CACHE", str(folder))
