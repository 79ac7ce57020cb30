"""Mistral through our import and back: with a window and without, in every spelling of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import MistralConfig, MistralForCausalLM

from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.mistral import FAMILY
from weft.core.errors import DataError, UsageError
from weft.models.config import ModelConfig

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake
from .test_llama import SIZES

HUB = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32000,
}
"""config.json of Mistral-7B-v0.1."""


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 7},
        {"sliding_window": None},
        {"sliding_window": None, "head_dim": 12, "tie_word_embeddings": True},
    ],
    ids=["window", "no window", "head size and tied words"],
)
def test_logits_are_the_same_after_import_and_after_export(
    changes: dict[str, object], tmp_path: Path
) -> None:
    original = shake(MistralForCausalLM(MistralConfig(**{**SIZES, **changes})))
    both_ways(FAMILY, original, tmp_path)


def test_the_file_of_mistral_7b_is_read_in_both_spellings() -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, HUB, MistralConfig)
    pattern, heads = config.attention.pattern, config.attention
    assert (pattern.kind, pattern.window, pattern.full_every) == ("window", 4096, None)
    assert (heads.num_heads, heads.kv_heads, config.head_size) == (32, 8, 128)
    assert (config.norm.eps, config.max_len) == (1e-5, 32768)


def test_a_null_window_is_none_at_all() -> None:
    values = {**HUB, "sliding_window": None, "head_dim": 128, "rope_theta": 1000000.0}
    config = assert_both_spellings_are_read_alike(FAMILY, values, MistralConfig)
    assert config.attention.pattern.kind == "full"
    assert config.position.base == 1000000.0


def test_layers_that_see_all_keys_in_an_order_that_weft_lacks_are_refused() -> None:
    order = ["full_attention", *["sliding_attention"] * 3] * 8
    sentence = (
        "24 of its 32 layers have a window, beginning with layer 2: Weft supports a window in "
        "every layer, or in all but each n-th."
    )
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, "layer_types": order}, PLACE))


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        (["full_attention"], "layer_types is a list of 1: it must name 32 layers."),
        ("full", "layer_types is 'full': it must name 32 layers."),
        (["linear_attention"] * 32, "layer_types has 'linear_attention': Weft supports full_att"),
    ],
)
def test_layer_types_that_make_no_sense_are_refused(types: object, sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, "layer_types": types}, PLACE))


def test_a_model_that_mistral_cannot_say_is_not_written_as_one() -> None:
    config = FAMILY.read_hf(HFConfig(HUB, PLACE))
    changed = config.with_changes({"attention.pattern.full_every": 6, "feedforward.bias": True})
    with pytest.raises(UsageError, match="attention.pattern.full_every is 6, not None"):
        export_config(FAMILY, changed)
    with pytest.raises(UsageError, match="this model is not a mistral"):
        export_config(FAMILY, ModelConfig())
