"""DeepSeek-V2 through our import and back: experts that files keep one by one, and its routers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

from weft.checkpoint.families.deepseek import DEEPSEEK_V2 as FAMILY
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import DataError, UsageError
from weft.models.config import ModelConfig

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
HUB = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
"""config.json of DeepSeek-V2-Lite."""

CHANGES = {
    "greedy": {},
    "whole queries": {"q_lora_rank": None},
    "groups": {
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 16.0,
    },
    "yarn": {"rope_parameters": YARN},
    "biases": {"attention_bias": True},
    "no dense layer": {"first_k_dense_replace": 0},
    "dense layers only": {"first_k_dense_replace": 3},
    "another eps outside of attention": {"rms_norm_eps": 0.05},
    "tied": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    original = shake(DeepseekV2ForCausalLM(DeepseekV2Config(**{**SIZES, **CHANGES[name]})))
    both_ways(FAMILY, original, tmp_path)


def test_the_file_of_deepseek_v2_lite_is_read_in_both_spellings() -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, HUB, DeepseekV2Config)
    experts, latent = config.feedforward, config.attention.latent
    assert experts.kind == "experts"
    assert (experts.num_experts, experts.num_groups, experts.normalise) == (64, 1, False)
    assert (latent.query_rank, latent.kv_rank, config.dense_layers) == (None, 512, 1)
    # 0.1 * 0.707 * ln(40) + 1, twice: what yarn makes of the scores
    assert config.attention.scale == pytest.approx(192**-0.5 * 1.2608037**2, rel=1e-6)


def test_a_file_without_kv_heads_has_as_many_as_heads() -> None:
    config = FAMILY.read_hf(HFConfig({**HUB, "num_key_value_heads": None}, PLACE))
    assert config.attention.kv_heads == 16


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"norm_topk_prob": True}, "norm_topk_prob is True: Weft supports False only."),
        ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid': Weft supports 'softmax' only."),
        (
            {"topk_method": "noaux_tc"},
            "topk_method is 'noaux_tc': Weft supports greedy, group_limit",
        ),
        ({"mlp_bias": True}, "mlp_bias is True: Weft supports False only."),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2: Weft supports 1 only."),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4: Weft supports 16 only."),
        ({"n_shared_experts": 0}, "n_shared_experts is 0: it must be an integer above 0."),
        ({"n_routed_experts": None}, "has no n_routed_experts, which this family needs."),
    ],
)
def test_what_weft_does_not_compute_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, **changes}, PLACE))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"feedforward": {"kind": "swiglu"}}, "its feed-forward is swiglu, and must be experts"),
        ({"feedforward.shared_experts": 0}, "its feed-forward is experts without shared ones"),
        ({"attention.scale": None}, "attention.scale is "),
        ({"attention.kind": "mha"}, "attention.kind is 'heads', not 'mla'"),
        ({"position.layout": "halves"}, "position.layout is 'halves', not 'interleaved'"),
    ],
)
def test_a_model_that_v2_cannot_say_is_not_written_as_one(
    changes: dict[str, object], sentence: str
) -> None:
    config = FAMILY.read_hf(HFConfig(HUB, PLACE)).with_changes(changes)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        export_config(FAMILY, config)


def test_a_model_of_our_own_whose_sizes_follow_from_the_heads_is_written(tmp_path: Path) -> None:
    config = ModelConfig(
        kind="decoder",
        attention={"kind": "mla", "num_heads": 4},
        position={"kind": "rotary", "layout": "interleaved"},
        feedforward={"kind": "experts", "normalise": False},
        norm={"kind": "rmsnorm", "eps": 1e-6},
        embedding={"tied": "none"},
        width=32,
    )
    values = export_config(FAMILY, config)
    assert (values["qk_nope_head_dim"], values["qk_rope_head_dim"]) == (8, 4)
