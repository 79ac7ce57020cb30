"""Gemma 3 through our import and back: two rotary bases, windows, norms on both sides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.contiguous_cache import ContiguousCache
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.gemma3 import FAMILY
from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import DataError, UsageError
from weft.core.forward_batch import ForwardBatch

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake

SIZES = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "sliding_window": 5,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
HUB = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 262144,
}
"""config.json of gemma-3-1b-it, from before layer_types."""
LINEAR = {"factor": 8.0, "rope_type": "linear"}
"""rope_scaling of the larger ones."""

CHANGES = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "scaled where all keys are seen": {
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, **LINEAR},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    },
    "scaled where a window is seen": {
        "rope_parameters": {
            "full_attention": {"rope_theta": 5000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 300.0, **LINEAR},
        }
    },
    "softcap and biases": {"final_logit_softcapping": 3.0, "attention_bias": True},
    "fewer layers than the pattern": {"num_hidden_layers": 3},
    "every third layer": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 6,
    },
    "no window": {"layer_types": ["full_attention"] * 7},
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    original = shake(Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **CHANGES[name]})))
    both_ways(FAMILY, original, tmp_path)


def test_cached_decoding_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    original = shake(Gemma3ForCausalLM(Gemma3TextConfig(**SIZES)))
    model, _ = both_ways(FAMILY, original, tmp_path)
    ids_BT = torch.randint(0, 67, (2, 24), generator=torch.Generator().manual_seed(3))
    cache = ContiguousCache(model.kv_specs(), 2, 24)
    parts = []
    with torch.no_grad():
        for chunk in ids_BT.split([9, 1, 1, 8, 1, 1, 3], dim=1):
            parts.append(model(ForwardBatch(chunk, cache=cache)))
            cache.advance(chunk.shape[1])
        expected = original(ids_BT).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"rope_scaling": LINEAR}], ids=["1b", "4b"])
def test_the_file_of_gemma_3_is_read_in_both_spellings(changes: dict[str, object]) -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, {**HUB, **changes}, Gemma3TextConfig)
    pattern, local = config.attention.pattern, config.local_position
    assert (pattern.kind, pattern.window, pattern.full_every) == ("window", 512, 6)
    assert local is not None
    assert (config.position.base, local.base) == (1e6, 1e4)
    assert config.position.scaling.kind == ("linear" if changes else "none")
    assert local.scaling.kind == "none"
    assert config.embedding.tied == "all"
    assert FAMILY.read_generation(HFConfig(HUB, PLACE)).ends == (1, 106)


def test_another_pattern_of_old_files_is_read() -> None:
    values = {**HUB, "sliding_window_pattern": 2, "rope_local_base_freq": 500.0}
    config = assert_both_spellings_are_read_alike(FAMILY, values, Gemma3TextConfig)
    assert config.attention.pattern.full_every == 2
    assert config.local_position is not None and config.local_position.base == 500.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is True: Weft supports False only.",
        ),
        (
            {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping is 50.0: Weft supports None only.",
        ),
        ({"hidden_activation": "mish"}, "hidden_activation is 'mish': Weft supports gelu, gelu_py"),
        ({"rope_parameters": 3}, "rope_parameters is 3: it must be an object."),
        ({"sliding_window": None}, "has no sliding_window, which this family needs."),
    ],
)
def test_what_weft_does_not_compute_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, **changes}, PLACE))


def test_one_position_for_all_layers_is_written_as_two_equal_ones() -> None:
    config = FAMILY.read_hf(HFConfig(HUB, PLACE)).with_changes({"local_position": None})
    result = export_config(FAMILY, config)["rope_parameters"]
    assert result["full_attention"] == result["sliding_attention"]


def test_a_scale_that_is_no_whole_number_is_not_written() -> None:
    config = FAMILY.read_hf(HFConfig(HUB, PLACE)).with_changes({"attention.scale": 0.1234})
    with pytest.raises(UsageError, match="attention.scale is "):
        export_config(FAMILY, config)
