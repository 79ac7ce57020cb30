"""Qwen2 through our import and back: its biases, and its windows as far as we compute them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.qwen import QWEN2 as FAMILY
from weft.core.errors import DataError

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake
from .test_llama import SIZES

HUB = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""config.json of Qwen2.5-0.5B-Instruct."""
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
"""What Qwen tells people to add for longer texts."""

CHANGES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "a window in every layer": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 0,
    },
    "windows that begin after the last layer": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 3,
    },
    "a window in all but each third layer": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    original = shake(Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **CHANGES[name]})))
    both_ways(FAMILY, original, tmp_path)


@pytest.mark.parametrize("changes", [{}, {"rope_scaling": YARN}], ids=["as it is", "with yarn"])
def test_the_file_of_qwen2_5_is_read_in_both_spellings(changes: dict[str, object]) -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, {**HUB, **changes}, Qwen2Config)
    assert config.attention.pattern.kind == "full"
    assert (config.attention.bias, config.attention.out_bias) == (True, False)
    assert config.position.scaling.kind == ("yarn" if changes else "none")


def test_windows_in_the_last_layers_only_are_refused() -> None:
    sentence = "3 of its 24 layers have a window, beginning with layer 22: Weft supports a window"
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, "use_sliding_window": True}, PLACE))


def test_a_window_that_is_used_but_null_is_none_at_all() -> None:
    values = {**HUB, "use_sliding_window": True, "sliding_window": None}
    config = assert_both_spellings_are_read_alike(FAMILY, values, Qwen2Config)
    assert config.attention.pattern.kind == "full"
