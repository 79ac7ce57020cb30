"""DeepSeek-V2: latent attention and experts with shared ones; V3 shares all but the router.

Files keep each expert's matrices by themselves and rotary pairs as neighbours; both are as
`save_pretrained` writes them. Experts are chosen by softmax, from all of them (Lite) or from the
best groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from weft.checkpoint.families import llama
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.families.rope import read_rope
from weft.checkpoint.weight_rules import WeightRule, layer, same, stacked_layers
from weft.core.errors import UsageError
from weft.models.config import ModelConfig
from weft.nn.experts import ExpertsConfig
from weft.nn.positions import RotaryConfig

LATENT_EPS = 1e-6
"""Their norms over latent rows do not read rms_norm_eps (which Moonlight sets to 1e-5)."""


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("scoring_func", "softmax", "softmax")
    hf.refuse("norm_topk_prob", False, False)
    has_groups = hf.one_of("topk_method", {"greedy": 0, "group_limited_greedy": 1}, "greedy")
    router = {
        "scoring": "softmax",
        "normalise": False,
        "scale": hf.number("routed_scaling_factor", 1.0),
        "num_groups": hf.size("n_group") if has_groups else 1,
        "groups_per_token": hf.size("topk_group") if has_groups else 1,
    }
    return read_model(hf, "interleaved", router, dense_layers=0)


def read_model(
    hf: HFConfig, layout: str, router: Mapping[str, Any], dense_layers: int
) -> ModelConfig:
    """What V2 and V3 read alike. `dense_layers`: how many there are where the file does not say."""
    hf.refuse("hidden_act", "silu", "silu")
    hf.refuse("mlp_bias", False, False)
    hf.refuse("moe_layer_freq", 1, 1)
    position, num_layers = read_rope(hf, layout), hf.size("num_hidden_layers")
    first = int(hf.number("first_k_dense_replace", dense_layers))
    return ModelConfig.from_dict(
        {
            "kind": "decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": hf.size("hidden_size"),
            "num_layers": num_layers,
            "max_len": hf.size("max_position_embeddings", 2048),
            "dropout": 0.0,
            "attention": read_attention(hf, position),
            "position": position,
            "feedforward": {**read_experts(hf), **router},
            "dense_layers": min(first, num_layers),
            "dense_feedforward": {"kind": "swiglu", "width": hf.size("intermediate_size")},
            "norm": {"kind": "rmsnorm", "eps": hf.number("rms_norm_eps", 1e-6)},
            "embedding": {"tied": "all" if hf.flag("tie_word_embeddings", False) else "none"},
        },
        where=str(hf.path),
    )


def read_attention(hf: HFConfig, position: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the latent heads; yarn sharpens their scores."""
    heads = hf.size("num_attention_heads")
    hf.refuse("num_key_value_heads", heads, heads)
    nope, rope = hf.size("qk_nope_head_dim", 128), hf.size("qk_rope_head_dim", 64)
    factor = RotaryConfig.from_dict(position, str(hf.path)).scaling.softmax_factor
    return {
        "kind": "mla",
        "num_heads": heads,
        "head_size": nope,
        "bias": hf.flag("attention_bias", False),
        "scale": None if factor == 1 else (nope + rope) ** -0.5 * factor,
        "latent": {
            "kv_rank": hf.size("kv_lora_rank", 512),
            "query_rank": None if hf.get("q_lora_rank") is None else hf.size("q_lora_rank"),
            "nope_size": nope,
            "rope_size": rope,
            "value_size": hf.size("v_head_dim", 128),
            "norm_eps": LATENT_EPS,
        },
    }


def read_experts(hf: HFConfig) -> dict[str, Any]:
    return {
        "kind": "experts",
        "num_experts": hf.size("n_routed_experts"),
        "experts_per_token": hf.size("num_experts_per_tok"),
        "shared_experts": hf.size("n_shared_experts"),
        "width": hf.size("moe_intermediate_size"),
    }


def write_config(config: ModelConfig) -> dict[str, Any]:
    experts = experts_of(config)
    has_groups = experts.groups_per_token < experts.num_groups
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "scoring_func": "softmax",
        "topk_method": "group_limited_greedy" if has_groups else "greedy",
        "mlp_bias": False,
        **write_model(config, experts),
    }


def experts_of(config: ModelConfig) -> ExpertsConfig:
    """The settings of the experts; a UsageError where there are none."""
    experts = config.feedforward
    if experts.kind != "experts" or not experts.shared_experts:
        told = experts.kind if experts.kind != "experts" else "experts without shared ones"
        raise UsageError(
            f"this model is not a DeepSeek: its feed-forward is {told}, where it has experts and "
            "shared ones. Choose another family."
        )
    return experts


def write_model(config: ModelConfig, experts: ExpertsConfig) -> dict[str, Any]:
    """What V2 and V3 write alike."""
    sizes, has_groups = latent_sizes(config), experts.groups_per_token < experts.num_groups
    return {
        **llama.common_config(config),
        **sizes,
        "head_dim": sizes["qk_rope_head_dim"],
        "hidden_act": "silu",
        "attention_bias": config.attention.bias,
        "intermediate_size": config.dense_feedforward.inner_width(config.width),
        "first_k_dense_replace": config.dense_layers,
        "moe_intermediate_size": experts.inner_width(config.width),
        "moe_layer_freq": 1,
        "n_routed_experts": experts.num_experts,
        "n_shared_experts": experts.shared_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "n_group": experts.num_groups if has_groups else 1,
        "topk_group": experts.groups_per_token if has_groups else 1,
        "norm_topk_prob": experts.normalise,
        "routed_scaling_factor": experts.scale,
    }


def latent_sizes(config: ModelConfig) -> dict[str, int | None]:
    """Sizes of the latent heads under their names."""
    sizes = config.attention.latent_sizes(config.width)
    return {
        "kv_lora_rank": sizes.kv_rank,
        "q_lora_rank": config.attention.latent.query_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    found, dense = llama.ends(config), config.dense_feedforward.inner_width(config.width)
    for i in range(config.num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
        found += attention(config, f"{ours}.attention", f"{theirs}.self_attn")
        found += layer(f"{ours}.attention_path.norm", f"{theirs}.input_layernorm")
        found += layer(f"{ours}.feedforward_path.norm", f"{theirs}.post_attention_layernorm")
        if i < config.dense_layers:
            found += gated(f"{ours}.feedforward", f"{theirs}.mlp", dense)
        else:
            found += experts_rules(config, f"{ours}.feedforward", f"{theirs}.mlp")
    return found


def attention(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    bias = config.attention.bias
    if config.attention.latent.query_rank is None:
        found = layer(f"{ours}.query", f"{theirs}.q_proj")
    else:
        found = layer(f"{ours}.query.0", f"{theirs}.q_a_proj", bias)
        found += layer(f"{ours}.query.1", f"{theirs}.q_a_layernorm")
        found += layer(f"{ours}.query.2", f"{theirs}.q_b_proj")
    found += layer(f"{ours}.kv_down", f"{theirs}.kv_a_proj_with_mqa", bias)
    found += layer(f"{ours}.kv_norm", f"{theirs}.kv_a_layernorm")
    found += layer(f"{ours}.kv_up", f"{theirs}.kv_b_proj")
    return found + layer(f"{ours}.out", f"{theirs}.o_proj", bias)


def gated(ours: str, theirs: str, width: int) -> list[WeightRule]:
    """A dense layer, or all shared experts together."""
    names = [f"{theirs}.{part}_proj" for part in ("gate", "up")]
    found = stacked_layers(f"{ours}.gate_up", names, (width, width))
    return found + layer(f"{ours}.down", f"{theirs}.down_proj")


def experts_rules(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    """Router, experts and shared experts of one layer."""
    experts = experts_of(config)
    width, count = experts.inner_width(config.width), experts.num_experts
    found = [same(f"{ours}.router.weight_ED", f"{theirs}.gate.weight")]
    if experts.correction:
        name = f"{theirs}.gate.e_score_correction_bias"
        found += [same(f"{ours}.router.correction_E", name)]
    found += stacked_experts(ours, f"{theirs}.experts", count, width)
    return found + gated(
        f"{ours}.shared", f"{theirs}.shared_experts", experts.shared_experts * width
    )


def stacked_experts(ours: str, theirs: str, count: int, width: int) -> list[WeightRule]:
    """Matrices of each expert, one behind the other in ours."""
    halves = [f"{theirs}.{e}.{part}_proj.weight" for e in range(count) for part in ("gate", "up")]
    downs = [f"{theirs}.{e}.down_proj.weight" for e in range(count)]
    return [
        WeightRule(
            f"{ours}.gate_up_EFD",
            tuple(halves),
            lambda parts: torch.cat(parts).unflatten(0, (count, -1)),
            lambda whole: list(whole.flatten(0, 1).split(width)),
            permutes_rows=True,
        ),
        WeightRule(
            f"{ours}.down_EDF",
            tuple(downs),
            torch.stack,
            lambda whole: list(whole.unbind()),
            permutes_rows=True,
        ),
    ]


FAMILY = replace(
    llama.FAMILY,
    name="deepseek_v2",
    model_types=("deepseek_v2",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
)
