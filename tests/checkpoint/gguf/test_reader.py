"""A GGUF file as a whole model, and what loading one leaves behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.engine.tiny import tiny
from weft.checkpoint.description import describe
from weft.checkpoint.formats import load_tokenizer
from weft.checkpoint.gguf import tensors
from weft.checkpoint.gguf.vocabularies import write_tokenizer
from weft.checkpoint.gguf.writer import save_gguf
from weft.cli.app import main
from weft.core.errors import DataError

from .material import U32, Raw, array, gguf_bytes, number, string, strings, write
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


@pytest.mark.parametrize("architecture", ["mamba", "", None])
def test_the_tokenizer_of_an_unknown_architecture_can_be_used(
    architecture: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = {} if architecture is None else {"general.architecture": string(architecture)}
    values = write_tokenizer(tokenizer(), 290)
    path = write(tmp_path, gguf_bytes({**metadata, **raw_values(values)}, []))
    assert load_tokenizer(path).encode("other words") == tokenizer().encode("other words")
    text = tmp_path / "in.txt"
    text.write_text("other words\n")
    assert main(["tokenize", str(path), str(text), "--ids"]) == 0
    assert capsys.readouterr().out.split() == [str(i) for i in tokenizer().encode("other words")]
    with pytest.raises(
        DataError, match="Weft reads llama, .* Use a model of one of these"
    ) as error:
        describe(path)
    assert "safetensors" not in str(error.value)


def raw_values(metadata: dict[str, Any]) -> dict[str, Raw]:
    """Metadata of a tokenizer in the bytes of a file."""
    raw = {}
    for key, value in metadata.items():
        if isinstance(value, bool):
            raw[key] = Raw(7, bytes([value]))
        elif isinstance(value, int):
            raw[key] = number(value)
        elif isinstance(value, str):
            raw[key] = string(value)
        elif isinstance(value[0], str):
            raw[key] = strings(value)
        else:
            raw[key] = array(4, [U32.pack(item) for item in value])
    return raw
