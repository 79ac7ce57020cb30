"""Rotary positions in a file's words and in a config.json's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from weft.checkpoint.families.gguf_metadata import (
    ROPE_DIVISORS,
    GGUFMetadata,
    llama3_divisors,
    read_gguf_rope,
    rope_rule,
    shortest_decimal,
    write_gguf_rope,
    write_llama3_divisors,
)
from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import DataError, UsageError

PLACE = Path("x.gguf")
RULE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def gguf(metadata: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> GGUFMetadata:
    result = {"general.architecture": "llama", **metadata}
    inputs = tensors or {}
    shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
    return GGUFMetadata(result, shapes, inputs.__getitem__, PLACE)


def test_divisors_are_those_of_transformers() -> None:
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={**RULE, "rope_theta": 500000.0},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 128, 2).double() / 128)
    expected = (plain / scaled.double()).float()
    np.testing.assert_allclose(llama3_divisors(RULE, 128, 500000.0), expected, rtol=1e-5, atol=0)


def test_llama_3s_rule_is_known_by_its_divisors() -> None:
    file = {ROPE_DIVISORS: llama3_divisors(RULE, 64, 500000.0)}
    actual = read_gguf_rope(gguf({"llama.rope.freq_base": 500000.0}, file), 64)
    assert actual == {"rope_theta": 500000.0, "rope_scaling": RULE}
    none = read_gguf_rope(gguf({}, {ROPE_DIVISORS: torch.ones(32)}), 64)
    assert none == {"rope_theta": 10000.0}


def test_divisors_of_another_rule_are_refused() -> None:
    other = llama3_divisors({**RULE, "high_freq_factor": 8.0}, 64, 500000.0)
    with pytest.raises(
        DataError, match="does not contain the divisors of Llama 3's rule with factor 32"
    ):
        read_gguf_rope(gguf({"llama.rope.freq_base": 500000.0}, {ROPE_DIVISORS: other}), 64)
    with pytest.raises(DataError, match="does not contain the divisors"):
        read_gguf_rope(gguf({}, {ROPE_DIVISORS: torch.full((5,), 2.0)}), 64)


def test_what_we_write_names_the_settings_of_the_rule() -> None:
    rule = {**RULE, "low_freq_factor": 2.0, "high_freq_factor": 9.0}
    rule["original_max_position_embeddings"] = 640
    inputs = HFConfig({"rope_scaling": rule, "rope_theta": 10000.0}, PLACE)
    result = write_gguf_rope(inputs, "llama", has_divisors=True)
    assert result["weft.rope.high_freq_factor"] == 9.0
    assert "llama.rope.scaling.type" not in result
    again = read_gguf_rope(gguf(result, write_llama3_divisors(inputs, 64)), 64)
    assert again == {"rope_theta": 10000.0, "rope_scaling": rule}


CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 1e6},
    "linear": {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "yarn": {
        "rope_theta": 1e6,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "beta_fast": 24.0,
        },
    },
}


@pytest.mark.parametrize("name", CASES)
def test_rules_come_back_as_they_were(name: str) -> None:
    inputs = HFConfig(CASES[name], PLACE)
    assert read_gguf_rope(gguf(write_gguf_rope(inputs, "llama")), 64) == CASES[name]


def test_both_spellings_of_a_config_are_one() -> None:
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}}
    old = {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert rope_rule(new) == rope_rule(old) == new["rope_parameters"]
    assert rope_rule({}) == {"rope_type": "default", "rope_theta": 10000.0}


def test_an_old_key_for_linear_scaling_is_read() -> None:
    actual = read_gguf_rope(gguf({"llama.rope.scale_linear": 4.0}), 64)
    assert actual["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


REFUSED = {
    "longrope": (
        {"llama.rope.scaling.type": "longrope"},
        "type is 'longrope': it must be none, lin",
    ),
    "partial": ({"llama.rope.dimension_count": 32}, "dimension_count is 32: it must be 64"),
    "attention": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 2.0},
        "attn_factor is 2.0: it must be 1.0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_weft_does_not_compute_is_refused(name: str) -> None:
    metadata, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        read_gguf_rope(gguf(metadata), 64)


def test_what_gguf_cannot_say_is_refused() -> None:
    dynamic = HFConfig({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, PLACE)
    with pytest.raises(
        UsageError, match="rope_type is 'dynamic', which a GGUF file of architecture"
    ):
        write_gguf_rope(dynamic, "llama", has_divisors=True)
    with pytest.raises(
        UsageError, match="rope_type is 'llama3', which a GGUF file of architecture q"
    ):
        write_gguf_rope(HFConfig({"rope_scaling": RULE}, PLACE), "qwen2")
    sharper = {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5}
    with pytest.raises(UsageError, match="rope_scaling.attention_factor is 1.5"):
        write_gguf_rope(HFConfig({"rope_scaling": sharper}, PLACE), "llama")


def test_numbers_are_read_as_the_shortest_that_name_them() -> None:
    assert shortest_decimal(9.999999747378752e-06) == 1e-05
    assert shortest_decimal(500000.0) == 500000.0
    assert shortest_decimal(0.1) == 0.1
