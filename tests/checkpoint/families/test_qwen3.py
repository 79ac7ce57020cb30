"""Qwen3 through our import and back: norms on queries and keys, a head size of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.qwen import QWEN3 as FAMILY
from weft.core.errors import UsageError

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake
from .test_llama import SIZES

HUB = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""config.json of Qwen3-0.6B."""

CHANGES = {
    "plain": {"head_dim": 8},
    "head size and tied words": {"head_dim": 12, "tie_word_embeddings": True},
    "biases": {"head_dim": 8, "attention_bias": True},
    "a window in every layer": {
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 0,
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    original = shake(Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **CHANGES[name]})))
    both_ways(FAMILY, original, tmp_path)


def test_the_file_of_qwen3_is_read_in_both_spellings() -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, HUB, Qwen3Config)
    assert (config.head_size, config.attention.qk_norm) == (128, True)
    assert (config.position.base, config.attention.pattern.kind) == (1000000.0, "full")


def test_a_file_without_a_head_size_means_128() -> None:
    values = {name: value for name, value in HUB.items() if name != "head_dim"}
    config = assert_both_spellings_are_read_alike(FAMILY, values, Qwen3Config)
    assert config.head_size == 128


def test_a_model_without_head_norms_is_not_written_as_qwen3() -> None:
    config = FAMILY.read_hf(HFConfig(HUB, PLACE)).with_changes({"attention.qk_norm": False})
    with pytest.raises(UsageError, match="attention.qk_norm is False, not True"):
        export_config(FAMILY, config)
