"""Metadata asked by name: what each architecture refuses, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.checkpoint.families import GGUF_ARCHITECTURES
from weft.checkpoint.families.gguf_metadata import GGUFMetadata
from weft.core.errors import DataError

PLACE = Path("x.gguf")
LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 80,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
}
SHAPES = {
    "token_embd.weight": (67, 48),
    "position_embd.weight": (64, 48),
    "token_types.weight": (2, 48),
}


def read(name: str, metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    result = {key.replace("llama.", f"{name}."): value for key, value in metadata.items()}
    result |= {"general.architecture": name}
    result |= {f"{name}.{key.replace('__', '.')}": value for key, value in changes.items()}
    gguf = GGUFMetadata(result, SHAPES, torch.empty(0).__getitem__, PLACE)
    return GGUF_ARCHITECTURES[name].read_gguf(gguf)


def test_a_small_header_is_a_config() -> None:
    assert read("llama", LLAMA) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 67,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_one_value_a_layer_is_read_where_they_are_the_same() -> None:
    same = read("llama", LLAMA, feed_forward_length=np.array([80, 80]))
    assert same["intermediate_size"] == 80
    with pytest.raises(DataError, match="head_count_kv is an array with different values"):
        read("llama", LLAMA, attention__head_count_kv=np.array([2, 3]))


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert read("llama", LLAMA, attention__sliding_window=64)["max_position_embeddings"] == 64


REFUSED = {
    "missing": ("llama", {"block_count": None}, "llama.block_count is None: it must be an integer"),
    "zero": (
        "llama",
        {"embedding_length": 0},
        "embedding_length is 0: it must be an integer above 0",
    ),
    "too large": (
        "llama",
        {"embedding_length": 2**31},
        "embedding_length is 2147483648: it must be at most 2,147,483,647",
    ),
    "flag": ("qwen2", {"context_length": True}, "context_length is True"),
    "text": ("llama", {"rope__freq_base": "x"}, "freq_base is 'x': it must be a number"),
    "number": ("llama", {"rope__scaling__type": 3}, "rope.scaling.type is 3: it must be a string"),
    "experts": ("llama", {"expert_count": 8}, "llama.expert_count is 8: it must be 0 in this"),
    "window": ("qwen3", {"attention__sliding_window": 8}, "sliding_window is 8: it must be absent"),
    "scale": ("llama", {"logit_scale": 0.5}, "logit_scale is 0.5: it must be 1"),
    "softcap": ("qwen2", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    "values": ("llama", {"attention__value_length": 4}, "value_length is 4: it must be 8"),
    "pattern": (
        "gemma3",
        {"attention__sliding_window": 8, "attention__sliding_window_pattern": "x"},
        "sliding_window_pattern is 'x': it must be a number or one flag per layer",
    ),
    "gemma's softcap": ("gemma3", {"final_logit_softcapping": 30.0}, "softcapping is 30.0"),
    "causal": ("bert", {"attention__causal": True}, "attention.causal is True: it must be False"),
    "pooling": ("bert", {"pooling_type": 3}, r"pooling_type is 3: it must be 1 \(mean\) or 2"),
    "gating": ("deepseek2", {"expert_gating_func": 7}, "expert_gating_func is 7"),
    "more tokens": ("deepseek2", {"nextn_predict_layers": 1}, "nextn_predict_layers is 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_weft_does_not_compute_is_refused(what: str) -> None:
    name, changes, message = REFUSED[what]
    with pytest.raises(DataError, match=message):
        read(name, LLAMA, **changes)


def test_a_missing_table_is_named() -> None:
    gguf = GGUFMetadata(LLAMA, {}, torch.empty(0).__getitem__, PLACE)
    with pytest.raises(DataError, match="has no tensor token_embd.weight"):
        GGUF_ARCHITECTURES["llama"].read_gguf(gguf)


def test_gemmas_largest_model_scales_its_scores_by_another_number() -> None:
    result = {**LLAMA, "llama.attention.key_length": 16, "llama.attention.value_length": 16}
    small = read("gemma3", result, attention__sliding_window=8)
    large = read("gemma3", result, attention__sliding_window=8, block_count=62)
    assert (small["query_pre_attn_scalar"], large["query_pre_attn_scalar"]) == (16, 8)


def test_gemmas_windows_may_be_a_list() -> None:
    flags = np.array([True, False])
    result = {"attention__sliding_window": 8, "attention__sliding_window_pattern": flags}
    actual = read("gemma3", LLAMA, **result)
    assert actual["layer_types"] == ["sliding_attention", "full_attention"]


def test_pooling_is_in_the_config() -> None:
    result = {**LLAMA, "llama.attention.layer_norm_epsilon": 1e-12}
    assert read("bert", result)["pooling"] == "mean"
    assert read("bert", result, pooling_type=2)["pooling"] == "first"
