"""DeepSeek-V2 and V3, Moonlight: architecture `deepseek2`, latent attention and experts.

Hugging Face's kv_b is two tensors in GGUF, by heads: k_b, turned round, and v_b; files before April
2025 have it whole, and both are read. Experts lie one behind the other in one tensor. A softmax
router means V2, a sigmoid V3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.deepseek_yarn import read_deepseek_yarn, write_deepseek_yarn
from weft.checkpoint.gguf.dialect.llama import (
    FEEDFORWARD,
    NORMS,
    ends,
    refuse,
    renamed,
)
from weft.checkpoint.weight_rules import WeightRule, layer, same

QUERY = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
}
ATTENTION = {
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
}
SHARED = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
SOFTMAX, SIGMOID = 1, 2
"""Values of expert_gating_func."""


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    gguf.refuse("nextn_predict_layers", 0)
    gating = gguf.get("expert_gating_func", SOFTMAX)
    if gating not in (SOFTMAX, SIGMOID):
        gguf.fail("expert_gating_func", repr(gating), "1 (softmax) or 2 (sigmoid)")
    heads, layers = gguf.size("attention.head_count"), gguf.size("block_count")
    return {
        "hidden_act": "silu",
        "vocab_size": gguf.rows("token_embd.weight"),
        "hidden_size": gguf.size("embedding_length"),
        "intermediate_size": gguf.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": gguf.size("context_length"),
        "rms_norm_eps": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "attention_bias": False,
        **read_sizes(gguf),
        **read_experts(gguf, gating),
        **read_deepseek_yarn(gguf),
    }


def read_sizes(gguf: GGUFMetadata) -> dict[str, Any]:
    """Sizes of the latent heads. Files with k_b and v_b keep them in keys of their own."""
    rope = gguf.size("rope.dimension_count")
    keys = gguf.size("attention.key_length_mla", gguf.get("attention.key_length"))
    values = gguf.size("attention.value_length_mla", gguf.get("attention.value_length"))
    if keys <= rope:
        gguf.fail("attention.key_length", repr(keys), f"above rope.dimension_count, {rope}")
    return {
        "kv_lora_rank": gguf.size("attention.kv_lora_rank"),
        "q_lora_rank": gguf.count("attention.q_lora_rank", 0) or None,
        "qk_nope_head_dim": keys - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": values,
    }


def read_experts(gguf: GGUFMetadata, gating: int) -> dict[str, Any]:
    groups = gguf.size("expert_group_count", 1)
    v3 = gating == SIGMOID
    return {
        "architectures": ["DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if v3 else "deepseek_v2",
        "scoring_func": "sigmoid" if v3 else "softmax",
        "topk_method": "noaux_tc" if v3 else "group_limited_greedy" if groups > 1 else "greedy",
        "first_k_dense_replace": gguf.count("leading_dense_block_count", 0),
        "moe_intermediate_size": gguf.size("expert_feed_forward_length"),
        "n_routed_experts": gguf.size("expert_count"),
        "n_shared_experts": gguf.size("expert_shared_count"),
        "num_experts_per_tok": gguf.size("expert_used_count"),
        "n_group": groups,
        "topk_group": gguf.size("expert_group_used_count", 1),
        "norm_topk_prob": bool(gguf.get("expert_weights_norm", False)),
        "routed_scaling_factor": gguf.number("expert_weights_scale", 1.0),
    }


def write_config(hf: HFConfig) -> dict[str, Any]:
    for name, allowed in (("hidden_act", "silu"), ("attention_bias", False), ("moe_layer_freq", 1)):
        refuse(hf, name, allowed)
    refuse(hf, "rope_interleave", True)
    rank, rope = hf.size("kv_lora_rank"), hf.size("qk_rope_head_dim")
    query = hf.get("q_lora_rank")
    return {
        "deepseek2.vocab_size": hf.size("vocab_size"),
        "deepseek2.context_length": hf.size("max_position_embeddings", 2048),
        "deepseek2.embedding_length": hf.size("hidden_size"),
        "deepseek2.block_count": hf.size("num_hidden_layers"),
        "deepseek2.feed_forward_length": hf.size("intermediate_size"),
        "deepseek2.attention.head_count": hf.size("num_attention_heads"),
        # seen from the cache there is one head, of the latent row and the turned part
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": rank + rope,
        "deepseek2.attention.value_length": rank,
        "deepseek2.attention.key_length_mla": hf.size("qk_nope_head_dim") + rope,
        "deepseek2.attention.value_length_mla": hf.size("v_head_dim"),
        "deepseek2.attention.kv_lora_rank": rank,
        **({} if query is None else {"deepseek2.attention.q_lora_rank": query}),
        "deepseek2.attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps", 1e-6),
        "deepseek2.rope.dimension_count": rope,
        **write_experts(hf),
        **write_deepseek_yarn(hf, "deepseek2"),
    }


def write_experts(hf: HFConfig) -> dict[str, Any]:
    v3 = hf.get("model_type") == "deepseek_v3"
    has_groups = v3 or hf.get("topk_method") == "group_limited_greedy"
    found = {
        "leading_dense_block_count": int(hf.number("first_k_dense_replace", 3 if v3 else 0)),
        "expert_feed_forward_length": hf.size("moe_intermediate_size"),
        "expert_count": hf.size("n_routed_experts"),
        "expert_shared_count": hf.size("n_shared_experts"),
        "expert_used_count": hf.size("num_experts_per_tok"),
        "expert_weights_scale": hf.number("routed_scaling_factor", 2.5 if v3 else 1.0),
        "expert_weights_norm": hf.flag("norm_topk_prob", v3),
        "expert_gating_func": SIGMOID if v3 else SOFTMAX,
        "expert_group_count": hf.size("n_group", 8 if v3 else 1) if has_groups else 1,
        "expert_group_used_count": hf.size("topk_group", 4 if v3 else 1) if has_groups else 1,
    }
    return {f"deepseek2.{key}": value for key, value in found.items()}


def rules(config: Config) -> list[WeightRule]:
    found = ends(config)
    for i in range(int(config["num_hidden_layers"])):
        theirs, file = f"model.layers.{i}", f"blk.{i}"
        found += renamed(theirs, file, NORMS | ATTENTION)
        has_rank = config.get("q_lora_rank") is not None
        query = QUERY if has_rank else {"self_attn.q_proj": "attn_q"}
        found += renamed(theirs, file, query)
        found.append(split_keys(config, f"{theirs}.self_attn.kv_b_proj.weight", file))
        if not has_experts(config, i):
            found += renamed(theirs, file, FEEDFORWARD)
            continue
        found += renamed(theirs, file, SHARED)
        if config.get("model_type") == "deepseek_v3":
            bias = f"{theirs}.mlp.gate.e_score_correction_bias"
            found.append(same(bias, f"{file}.exp_probs_b.bias"))
    return found


def older_rules(config: Config) -> list[WeightRule]:
    """kv_b as one tensor."""
    layers = range(int(config["num_hidden_layers"]))
    names = [(f"model.layers.{i}.self_attn.kv_b_proj", f"blk.{i}.attn_kv_b") for i in layers]
    return [rule for hf, file in names for rule in layer(hf, file)]


def has_experts(config: Config, index: int) -> bool:
    default = 3 if config.get("model_type") == "deepseek_v3" else 0
    first = config.get("first_k_dense_replace")
    return index >= (default if first is None else int(first))


def split_keys(config: Config, hf: str, file: str) -> WeightRule:
    """[heads * (nope + value), rank] <-> k_b [heads, rank, nope] and v_b [heads, value, rank]."""
    heads = int(config["num_attention_heads"])
    sizes = [int(config["qk_nope_head_dim"]), int(config["v_head_dim"])]

    def join(parts: list[Tensor]) -> Tensor:
        return torch.cat([parts[0].transpose(1, 2), parts[1]], 1).flatten(0, 1)

    def split(whole: Tensor) -> list[Tensor]:
        keys, values = whole.unflatten(0, (heads, -1)).split(sizes, 1)
        return [keys.transpose(1, 2), values]

    return WeightRule(hf, (f"{file}.attn_k_b.weight", f"{file}.attn_v_b.weight"), join, split)


def stacks(config: Config) -> dict[str, list[str]]:
    """The experts of each layer."""
    count = range(int(config["n_routed_experts"]))
    return {
        f"blk.{i}.ffn_{part}_exps.weight": [
            f"model.layers.{i}.mlp.experts.{expert}.{part}_proj.weight" for expert in count
        ]
        for i in range(int(config["num_hidden_layers"]))
        if has_experts(config, i)
        for part in ("gate", "up", "down")
    }


ARCHITECTURE = GGUFArchitecture(
    name="deepseek2",
    model_types=("deepseek_v2", "deepseek_v3"),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    older_rules=older_rules,
    stacks=stacks,
    ignored=(r".*rotary_emb\.inv_freq", r"lm_head\.weight"),
    prefixes=("model.",),
)
