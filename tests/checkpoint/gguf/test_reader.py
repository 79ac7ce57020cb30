"""A GGUF file as a whole model, and what loading one leaves behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from tests.engine.tiny import tiny
from weft.checkpoint.gguf import tensors
from weft.checkpoint.gguf.writer import save_gguf

from .tiny import tokenizer

LLAMA = {
    "attention": {"num_heads": 4},
    "position": {"kind": "rotary"},
    "feedforward": {"kind": "swiglu", "bias": False},
    "norm": {"kind": "rmsnorm"},
}


def test_loading_leaves_the_number_of_threads_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and in threads that begin later, which take over what others have set."""
    original = replace(tiny("decoder", **LLAMA), tokenizer=tokenizer())
    assert save_gguf(original, tmp_path / "x.gguf", None, "f32") == "llama"
    monkeypatch.setattr(tensors, "MIN_THREADED_NUMBERS", 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        loaded = weft.load(tmp_path / "x.gguf")
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    state = original.model.state_dict()
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
