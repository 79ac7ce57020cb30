"""Models from files in few bits: the logits of the same file in floats, bit for bit, in the memory
of the file; and every way out of the packed form gives the floats."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.engine.tiny import tiny
from weft.checkpoint import tensor_source
from weft.checkpoint.formats import convert, load_checkpoint
from weft.checkpoint.gguf import writer
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.writer import save_gguf
from weft.core.forward_batch import ForwardBatch
from weft.engine.loaded_model import LoadedModel
from weft.models.build import AnyModel
from weft.models.transformer import EncoderDecoder
from weft.native import packed as packed_module
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import (
    PACKED_TYPES,
    PackedModule,
    pack_model,
    packed_modules,
    unpack_model,
)

from .tiny import tokenizer

ROTARY = {"position": {"kind": "rotary"}, "norm": {"kind": "rmsnorm"}}
LLAMA = {
    **ROTARY,
    "width": 64,
    "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2},
    "feedforward": {"kind": "swiglu", "width": 96, "bias": False},
}
GPT2 = {
    "width": 64,
    "attention": {"num_heads": 4, "bias": True},
    "position": {"kind": "learned"},
    "feedforward": {"kind": "gelu_tanh", "width": 96},
    "norm": {"kind": "layernorm"},
}
T5 = {
    "width": 64,
    "attention": {"num_heads": 4, "head_size": 16, "scale": 1.0},
    "position": {"kind": "bucketed", "num_buckets": 32, "max_distance": 128},
    "feedforward": {"kind": "geglu_tanh", "width": 96, "bias": False},
    "norm": {"kind": "rmsnorm"},
    "embedding": {"tied": "input"},
}
DEEPSEEK = {
    **LLAMA,
    "position": {"kind": "rotary", "layout": "interleaved"},
    "attention": {
        "kind": "mla",
        "num_heads": 4,
        "latent": {
            "kv_rank": 32,
            "query_rank": 32,
            "nope_size": 32,
            "rope_size": 16,
            "value_size": 32,
            "norm_eps": 1e-6,
        },
    },
    "feedforward": {"kind": "experts", "num_experts": 5, "width": 32, "normalise": False},
    "dense_layers": 1,
    "dense_feedforward": {"kind": "swiglu", "width": 96},
}
QWEN3 = {**LLAMA, "attention": {**LLAMA["attention"], "qk_norm": True, "head_size": 32}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("decoder", LLAMA),
    "llama, untied": ("decoder", {**LLAMA, "embedding": {"tied": "none"}}),
    "qwen3": ("decoder", QWEN3),
    "gpt2": ("decoder", GPT2),
    "deepseek": ("decoder", DEEPSEEK),
    "t5": ("encoder-decoder", T5),
}
KINDS = {"F32": "f32", "F16": "f32", "Q4_0": "q4", "Q4_1": "q4", "Q5_0": "f32", "Q8_0": "q8"}
"""Types of a file's matrices, and what a packed weight becomes of each."""


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, **types: str) -> Path:
    """A file whose matrices are of type `types[end of its name]`, else of `types["rest"]`."""

    def type_of(tensor: str, shape: tuple[int, ...], file_type: str) -> writer.TensorType:
        wanted = next((t for end, t in types.items() if f"{end}.weight" in tensor), types["rest"])
        is_full = len(shape) == 1 or tensor.endswith(writer.ALWAYS_F32)
        return writer.TYPE_BY_NAME["F32" if is_full else wanted]

    monkeypatch.setattr(writer, "type_of", type_of)
    kind, changes = MODELS[name]
    checkpoint = replace(tiny(kind, vocab_size=290, **changes), tokenizer=tokenizer())
    save_gguf(checkpoint, folder / "x.gguf", None, "f32")
    return folder / "x.gguf"


def load_floats(path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """The model as it is where nothing can multiply by few bits."""
    with monkeypatch.context() as patched:
        patched.setattr(tensor_source, "can_pack_quantized", lambda device, dtype: False)
        return weft.load(path)


def in_floats(path: Path, monkeypatch: pytest.MonkeyPatch) -> AnyModel:
    return load_floats(path, monkeypatch).model


def logits(model: AnyModel, ids_BT: Tensor) -> Tensor:
    batch = ForwardBatch(ids_BT)
    found: Tensor = model(batch, batch) if isinstance(model, EncoderDecoder) else model(batch)
    return found


def kinds(model: AnyModel) -> dict[str, str]:
    """Of every weight that can be packed, by its name; 'float' of those that are not."""
    found = {}
    for path, layer in model.named_modules():
        if isinstance(layer, PackedModule):
            found |= {f"{path}.{name}": matrix.kind for name, matrix in layer.matrices.items()}
        elif type(layer) in PACKED_TYPES:
            names = PACKED_TYPES[type(layer)].packed_names
            found |= {f"{path}.{name}": "float" for name in names}
    return found


TURNED = {"gpt2": "blocks", "deepseek": "kv_up|router"}
"""Weights that files have turned round, and so cannot stay in few bits; routers are F32 always."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_weights_are_those_of_the_file_in_floats(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, monkeypatch, name, rest=kind)
    model, floats = load_checkpoint(path).model, in_floats(path, monkeypatch)
    for weight, found in kinds(model).items():
        is_float = KINDS[kind] == "f32" or re.search(TURNED.get(name, "$^"), weight)
        assert found == ("float" if is_float else KINDS[kind]), weight
    ids_BT = torch.randint(290, (2, 9))
    assert logits(model, ids_BT).equal(logits(floats, ids_BT)), "with gradients"
    for one, other in zip(model.state_dict().items(), floats.state_dict().items(), strict=True):
        assert one[0] == other[0] and same_bits(one[1], other[1]), one[0]
    pack_model(model), pack_model(floats)
    with torch.inference_mode():
        assert logits(model, ids_BT).equal(logits(floats, ids_BT))
    for one, other in zip(unpack_model(model).parameters(), floats.parameters(), strict=True):
        assert not is_memoryless(one) and one.shape == other.shape


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.view(torch.int32).equal(other.view(torch.int32))


def test_parts_of_one_weight_that_differ_in_kind_become_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = {"attn_v": "Q8_0", "ffn_up": "Q4_1", "token_embd": "Q8_0", "rest": "Q4_0"}
    path = write(tmp_path, monkeypatch, "llama", **types)
    model = load_checkpoint(path).model
    packed = {name: m for name, m in model.named_modules() if isinstance(m, PackedModule)}
    found = {name: m.matrices.get("weight") for name, m in packed.items()}
    block = "decoder.blocks.0"
    assert f"{block}.attention.qkv" not in found
    # Q4_0 and Q4_1 are one kind
    for end, kind in (("attention.out", "q4"), ("feedforward.gate_up", "q4")):
        packed = found[f"{block}.{end}"]
        assert packed is not None and packed.kind == kind
    head = found["head"]
    assert head is not None and head.kind == "q8" and head is found["decoder.embedding.words"]
    ids_BT, floats = torch.randint(290, (1, 9)), in_floats(path, monkeypatch)
    pack_model(model), pack_model(floats)
    with torch.inference_mode():
        assert logits(model, ids_BT).equal(logits(floats, ids_BT))


def test_other_dtypes_and_a_machine_without_the_library_get_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, monkeypatch, "llama", rest="Q8_0")
    assert set(kinds(load_checkpoint(path, dtype=torch.bfloat16).model).values()) == {"float"}
    monkeypatch.setattr(tensor_source, "native", lambda: None)
    monkeypatch.setattr(packed_module, "native", lambda: None)
    model = load_checkpoint(path).model
    assert set(kinds(model).values()) == {"float"}
    assert not any(is_memoryless(weight) for weight in model.parameters())


def test_a_loaded_model_writes_and_its_weights_take_the_room_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, monkeypatch, "llama", rest="Q4_1")
    loaded = weft.load(path)
    matrices = [m for layer in packed_modules(loaded.model) for m in layer.matrices.values()]
    assert len(matrices) == 10, "four of each layer, the table and the head"
    held = {id(matrix): matrix.num_bytes for matrix in matrices}
    infos = [info for info in read_header(path).tensors.values() if len(info.shape) == 2]
    stored = sum(info.num_bytes for info in infos)
    assert sum(held.values()) <= 1.1 * stored  # panels are filled up
    text = loaded.generate("the words", max_tokens=5, temperature=0)
    floats = load_floats(path, monkeypatch)
    assert text == floats.generate("the words", max_tokens=5, temperature=0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_what_is_converted_has_the_floats_of_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, monkeypatch, "llama", rest=kind)
    expected = in_floats(path, monkeypatch).state_dict()
    monkeypatch.undo()
    convert(path, tmp_path / "hf", "hf")
    convert(path, tmp_path / "weft", "weft")
    convert(path, tmp_path / "again.gguf", "gguf", dtype="f32")
    for name in ("hf", "weft", "again.gguf"):
        state = load_checkpoint(tmp_path / name).model.state_dict()
        assert state.keys() == expected.keys()
        assert all(same_bits(state[key], expected[key]) for key in expected), name
