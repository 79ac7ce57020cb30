"""Llama through our import and back: the same logits each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.llama import FAMILY
from weft.checkpoint.huggingface import open_folder
from weft.checkpoint.tensor_source import build_from_source
from weft.core.errors import DataError
from weft.core.forward_batch import ForwardBatch

from .material import assert_every_tensor_is_used_once, exported, imported, shake

SIZES = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}

CHANGES = {
    "llama 2": {"num_key_value_heads": 6},
    "llama 3.1": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "smollm2": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head size": {"head_dim": 12},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str) -> None:
    original = shake(LlamaForCausalLM(LlamaConfig(**{**SIZES, **CHANGES[name]})))
    model = imported(FAMILY, original)
    ids_BT = torch.randint(0, 67, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = original(ids_BT).logits
        torch.testing.assert_close(model(ForwardBatch(ids_BT)), expected, atol=1e-4, rtol=1e-4)
        again = exported(FAMILY, model, original)(ids_BT).logits
        torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)
    assert_every_tensor_is_used_once(FAMILY, model, original)


@pytest.mark.parametrize("original", [{}, {"original_max_position_embeddings": 16}])
@pytest.mark.parametrize("factor", [2.0, 3.5])
def test_dynamic_scaling_is_that_of_transformers(factor: float, original: dict[str, int]) -> None:
    """Which ignores original_max_position_embeddings: angles change beyond 64 tokens."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": factor, **original}
    source = shake(LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)))
    model = imported(FAMILY, source)
    assert model.config.max_cached_len == 64 and model.config.max_len == int(64 * factor)
    for length in (10, 40, 64, 65, 100, 127):
        ids_BT = torch.randint(0, 67, (2, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = fresh_angles(source)(ids_BT).logits
            torch.testing.assert_close(model(ForwardBatch(ids_BT)), expected, atol=1e-4, rtol=1e-4)
            again = exported(FAMILY, model, source)(ids_BT).logits
            torch.testing.assert_close(again, expected, atol=1e-4, rtol=1e-4)


def fresh_angles(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """transformers keeps the angles of the longest text so far."""
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model


def test_a_billion_layers_are_refused_before_anything_is_made() -> None:
    config = LlamaConfig(**SIZES).to_dict() | {"num_hidden_layers": 10**9}
    with pytest.raises(DataError, match="num_hidden_layers is 1000000000: it must be at most"):
        FAMILY.read_hf(HFConfig(config, Path("config.json")))


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings"])
def test_a_size_that_is_too_large_is_not_said_to_be_below_1(key: str) -> None:
    config = LlamaConfig(**SIZES).to_dict() | {key: 2**31}
    with pytest.raises(DataError, match=f"{key} is 2147483648: it must be at most 2,147,483,647"):
        FAMILY.read_hf(HFConfig(config, Path("config.json")))


def saved(folder: Path, **changes: object) -> Path:
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (folder / "generation_config.json").unlink()
    return folder


@pytest.mark.parametrize("end", [67, [2, 500]])
def test_an_end_that_no_token_is_does_not_prevent_loading(end: object, tmp_path: Path) -> None:
    """It is logged when the model is used."""
    ends = end if isinstance(end, list) else [end]
    opened = open_folder(saved(tmp_path / "end", eos_token_id=end))
    assert list(opened.generation_config.ends) == ends


def test_weights_stored_as_whole_numbers_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.ones(48, 80, dtype=torch.int32)
    save_file(tensors, path)
    opened = open_folder(folder)
    with pytest.raises(DataError, match=r"down_proj.weight' is stored as int32: weights must be"):
        build_from_source(opened.config, FAMILY.rules(opened.config), opened.source, FAMILY.ignored)
