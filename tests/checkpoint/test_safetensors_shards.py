"""Weights in several files: cut where `transformers` cuts them, read back by it and by us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from transformers import LlamaConfig, LlamaForCausalLM

import weft
from weft.checkpoint.formats import convert
from weft.checkpoint.safetensors_files import open_safetensors, parse_size, plan_shards, save_shards
from weft.checkpoint.safetensors_header import INDEX_FILE, WEIGHTS_FILE
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch

from .families.material import shake
from .gguf.tiny import SIZES, tokenizer

STATE = {f"layer.{i}.weight": torch.full((i + 1, 4), float(i)) for i in range(6)}


@pytest.mark.parametrize("limit", [1, 100, 130, 10**6])
def test_files_are_cut_where_transformers_cuts_them(limit: int, tmp_path: Path) -> None:
    theirs = split_torch_state_dict_into_shards(STATE, max_shard_size=limit)
    sizes = {name: tensor.nbytes for name, tensor in STATE.items()}
    assert plan_shards(sizes, limit) == list(theirs.filename_to_tensors.values())
    files = save_shards(STATE, tmp_path, limit)
    assert {*theirs.filename_to_tensors} == {*files} - {INDEX_FILE}
    if theirs.is_sharded:
        index = json.loads((tmp_path / INDEX_FILE).read_text())
        assert index["weight_map"] == theirs.tensor_to_filename
        assert index["metadata"]["total_size"] == theirs.metadata["total_size"]
    source = open_safetensors(tmp_path)
    assert source is not None and source.shapes.keys() == STATE.keys()
    assert all(torch.equal(source.read(name), tensor) for name, tensor in STATE.items())


def test_a_converted_model_in_many_files_is_read_by_transformers(tmp_path: Path) -> None:
    original = shake(LlamaForCausalLM(LlamaConfig(**SIZES)))
    original.save_pretrained(tmp_path / "theirs")
    tokenizer().save(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", "hf", max_shard="40KB")
    files = sorted(path.name for path in (tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert not (tmp_path / "ours" / WEIGHTS_FILE).exists()
    again, result = LlamaForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(result.values()), result
    for name, tensor in original.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    ids_BT = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        ours = weft.load(tmp_path / "ours").model(ForwardBatch(ids_BT))
        torch.testing.assert_close(ours, original(ids_BT).logits, atol=1e-4, rtol=1e-4)


def test_files_may_be_read_by_whoever_may_read_others(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    save_shards(STATE, tmp_path)
    assert (tmp_path / WEIGHTS_FILE).stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 MB", 1_500_000), ("2GiB", 2**31), ("300", 300), ("7kb", 7000)],
)
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5 apples", "0", "0.1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a file size. Write it like 5GB"):
        parse_size(text)


def test_a_setting_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only an hf folder is divided into files, not gguf"):
        convert("smollm2", tmp_path / "x", "gguf", max_shard="1GB")
    with pytest.raises(UsageError, match="only a gguf file is stored as q8_0; hf is float32"):
        convert("smollm2", tmp_path / "x", "hf", dtype="q8_0")
