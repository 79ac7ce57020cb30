"""DeepSeek-V3 through our import and back: sigmoid router with its correction, both layouts of
rotary pairs, the layer that is left unread."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel

from weft.checkpoint.families.deepseek import DEEPSEEK_V3 as FAMILY
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import InMemorySource, build_from_source
from weft.core.errors import DataError
from weft.core.forward_batch import ForwardBatch

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake
from .test_deepseek_v2 import HUB as HUB_V2
from .test_deepseek_v2 import SIZES as SIZES_V2
from .test_deepseek_v2 import YARN

SIZES = {**SIZES_V2, "n_group": 4, "topk_group": 2}
HUB = {
    **HUB_V2,
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": {**HUB_V2["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}
"""config.json of DeepSeek-V3, without quantization_config."""

CHANGES = {
    "plain": {},
    "whole queries": {"q_lora_rank": None},
    "yarn": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "yarn with two mscales": {"rope_parameters": {**YARN, "mscale": 1.3}},
    "rotary halves": {"rope_interleave": False},
    "moonlight": {
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": None,
        "num_mtp_layers": 0,
    },
    "shares that do not sum to one": {"norm_topk_prob": False, "routed_scaling_factor": 1.5},
    "every group": {"topk_group": 4},
    "heads that do not divide the width": {"num_attention_heads": 5, "num_key_value_heads": 5},
}


def tiny(**changes: object) -> PreTrainedModel:
    """Random weights, and random corrections too: they are no parameters."""
    model = shake(DeepseekV3ForCausalLM(DeepseekV3Config(**{**SIZES, **changes})))
    generator = torch.Generator().manual_seed(5)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    both_ways(FAMILY, tiny(**CHANGES[name]), tmp_path)


def test_the_file_of_deepseek_v3_is_read_in_both_spellings() -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, HUB, DeepseekV3Config)
    experts = config.feedforward
    assert experts.kind == "experts"
    assert (experts.num_groups, experts.groups_per_token, experts.group_score) == (8, 4, "top2")
    assert (experts.scoring, experts.correction, experts.scale) == ("sigmoid", True, 2.5)
    assert (config.position.layout, config.dense_layers) == ("interleaved", 3)


def test_the_layer_that_predicts_a_second_token_is_left_unread(tmp_path: Path) -> None:
    original = tiny()
    original.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.61.enorm.weight"] = torch.ones(32)
    state["model.layers.61.mlp.experts.0.gate_proj.weight"] = torch.ones(20, 32)
    config = FAMILY.read_hf(HFConfig(original.config.to_dict(), PLACE))
    model = build_from_source(
        config, FAMILY.rules(config), InMemorySource(state, PLACE), FAMILY.ignored
    )
    ids_BT = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, expected = model(ForwardBatch(ids_BT)), original(ids_BT).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    original = tiny()
    original.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.2.mlp.experts.7.up_proj.weight"]
    config = FAMILY.read_hf(HFConfig(original.config.to_dict(), PLACE))
    sentence = "model.layers.2.mlp.experts.7.up_proj.weight is missing"
    with pytest.raises(DataError, match=re.escape(sentence)):
        build_from_source(
            config, FAMILY.rules(config), InMemorySource(state, PLACE), FAMILY.ignored
        )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax': Weft supports 'sigmoid' only."),
        ({"topk_method": "greedy"}, "topk_method is 'greedy': Weft supports 'noaux_tc' only."),
    ],
)
def test_what_weft_does_not_compute_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, **changes}, PLACE))
