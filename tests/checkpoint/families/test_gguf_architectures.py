"""Every architecture, written and read again: the same settings, tensors and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from weft.checkpoint.families import (
    FAMILIES,
    GGUF_ARCHITECTURES,
    family_of,
    gguf_architecture,
    gguf_family,
)
from weft.checkpoint.families.export_check import config_differences
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.gguf.reader import open_gguf
from weft.checkpoint.gguf.writer import write_gguf
from weft.checkpoint.tensor_source import build_from_source
from weft.core.errors import DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel

from ..gguf.tiny import MODELS, VOCAB, original, saved, tokenizer


def write_tiny(name: str, folder: Path) -> tuple[Path, dict[str, Any], dict[str, torch.Tensor]]:
    config, tensors = original(name).config.to_dict(), saved(name, folder)
    path = write_gguf(folder / "x.gguf", config, tensors, tokenizer(), file_type="f32")
    return path, config, tensors


def model_of(path: Path) -> AnyModel:
    """Our model of a file, through its family."""
    config, source, _ = open_gguf(path)
    family = family_of(config["model_type"], path)
    settings = family.read_hf(HFConfig(config, path))
    return build_from_source(settings, family.rules(settings), source, family.ignored)


@pytest.mark.parametrize("name", MODELS)
def test_tensors_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    path, _, tensors = write_tiny(name, tmp_path)
    _, source, _ = open_gguf(path)
    kept = {key: value for key, value in tensors.items() if not key.startswith("pooler.")}
    assert source.shapes.keys() == kept.keys()
    for key, value in kept.items():
        assert source.shapes[key] == tuple(value.shape), key
        # Gemma's norms are written plus 1
        torch.testing.assert_close(source.read(key), value, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("bert", "t5", "t5 gated")])
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    path, _, _ = write_tiny(name, tmp_path)
    ids_BT = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = original(name)(ids_BT).logits
        actual = model_of(path)(ForwardBatch(ids_BT))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


INDEPENDENT = ["llama", "llama tied", "llama heads", "qwen2", "qwen3", "gemma3", "gpt2"]


@pytest.mark.parametrize("name", INDEPENDENT)
def test_transformers_reads_the_same_tensors_from_our_file(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own reader, with its own names and orders of rows."""
    path, _, tensors = write_tiny(name, tmp_path)
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=original(name))
    capfd.readouterr()
    for key, value in tensors.items():
        torch.testing.assert_close(theirs["tensors"][key].float(), value, rtol=0, atol=1e-6)


ENUMS = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "deepseek2": gguf.MODEL_ARCH.DEEPSEEK2,
    "bert": gguf.MODEL_ARCH.BERT,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "t5": gguf.MODEL_ARCH.T5,
}


@pytest.mark.parametrize("name", MODELS)
def test_names_are_those_of_llama_cpps_converter(name: str) -> None:
    config = original(name).config.to_dict()
    _, entry = gguf_family(config["model_type"])
    names = gguf.get_tensor_name_map(ENUMS[entry.name], 8)
    for rule in [*entry.rules(config), *entry.legacy_rules(config)]:
        if len(rule.file_names) == 1 and "e_score_correction" not in rule.target_name:
            expected = names.get_name(rule.target_name, try_suffixes=(".weight", ".bias"))
            assert rule.file_names == (expected,), rule.target_name


def test_every_architecture_is_in_the_models_above() -> None:
    tried = [gguf_family(config.model_type) for _, config in MODELS.values()]
    assert {entry.name for _, entry in tried} == GGUF_ARCHITECTURES.keys() == ENUMS.keys()
    assert {family.name for family, _ in tried} == {f.name for f in FAMILIES if f.gguf}


@pytest.mark.parametrize("name", MODELS)
def test_settings_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    path, config, _ = write_tiny(name, tmp_path)
    actual, _, _ = open_gguf(path)
    family = family_of(config["model_type"], path)
    result = {**config, "add_pooling_layer": False, "architectures": actual["architectures"]}
    again = family_of(actual["model_type"], path)
    ours, theirs = (
        again.read_hf(HFConfig(actual, path)),
        family.read_hf(HFConfig(result, path)),
    )
    assert config_differences(ours, theirs) == []


def test_deepseek_files_of_old_keep_kv_b_whole(tmp_path: Path) -> None:
    """As llama.cpp wrote it before it split the tensor: other sizes in the metadata, one tensor."""
    path, config, tensors = write_tiny("deepseek 3", tmp_path)
    new, old = gguf.GGUFReader(path), gguf.GGUFWriter(tmp_path / "old.gguf", "deepseek2")
    keys = {
        "deepseek2.attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "deepseek2.attention.value_length": config["v_head_dim"],
        "deepseek2.attention.head_count_kv": config["num_attention_heads"],
    }
    for field in new.fields.values():
        mla = field.name.endswith("_mla") or field.name.startswith(("GGUF.", "general.arch"))
        if not mla:
            value = keys.get(field.name, field.contents())
            old.add_key_value(field.name, value, field.types[0], None)
    for tensor in new.tensors:
        if not tensor.name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            old.add_tensor(tensor.name, tensor.data)
    for key, value in tensors.items():
        if key.endswith("kv_b_proj.weight"):
            old.add_tensor(f"blk.{key.split('.')[2]}.attn_kv_b.weight", value.numpy())
    old.write_header_to_file()
    old.write_kv_data_to_file()
    old.write_tensors_to_file()
    old.close()
    config, source, _ = open_gguf(tmp_path / "old.gguf")
    assert config == open_gguf(path).config
    assert source.shapes == open_gguf(path).source.shapes
    for key, value in tensors.items():
        torch.testing.assert_close(source.read(key), value, rtol=0, atol=0)


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="general.architecture is 'mamba': Weft reads llama, qwen2"):
        gguf_architecture("mamba", Path("x.gguf"))
    with pytest.raises(UsageError, match="model_type is 'marian'.*it writes llama, mistral, qwen2"):
        gguf_family("marian")


def test_what_is_left_over_or_missing_is_seen_by_whoever_fills_a_model(tmp_path: Path) -> None:
    path, _, _ = write_tiny("llama", tmp_path)
    new, changed = gguf.GGUFReader(path), gguf.GGUFWriter(tmp_path / "y.gguf", "llama")
    for field in new.fields.values():
        if not field.name.startswith(("GGUF.", "general.arch")):
            changed.add_key_value(field.name, field.contents(), field.types[0], None)
    for tensor in new.tensors:
        name = tensor.name.replace("blk.1.ffn_up", "blk.1.ffn_extra")
        changed.add_tensor(name, tensor.data)
    changed.write_header_to_file()
    changed.write_kv_data_to_file()
    changed.write_tensors_to_file()
    changed.close()
    with pytest.raises(DataError, match="up_proj.weight is missing.*ffn_extra.weight is not part"):
        model_of(tmp_path / "y.gguf")


@pytest.mark.parametrize("name", MODELS)
def test_a_billion_layers_are_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    path, _, _ = write_tiny(name, tmp_path)
    whole = path.read_bytes()
    place = whole.index(b"block_count") + len(b"block_count") + 4
    path.write_bytes(whole[:place] + (10**9).to_bytes(4, "little") + whole[place + 4 :])
    with pytest.raises(DataError, match="block_count is 1000000000: it must be at most 2,000"):
        open_gguf(path)
