"""DeepSeek-V2 (deepseek_v2), and DeepSeek-V3, R1 and Moonlight (deepseek_v3): MLA, and a mixture of
experts with shared ones.

V2 selects experts by softmax, from all of them (Lite) or from the best groups; V3 by a sigmoid with
a learned correction per expert. Files contain each expert's matrices separately and rotary pairs as
neighbors. V3's layer for multi-token prediction, the last of the official files, is not read.

GGUF (architecture `deepseek2` for all) has two tensors for kv_b, by heads: k_b, transposed, and
v_b; files before April 2025 have it whole, and both are read. The experts of a layer are one
tensor. A softmax router means V2, a sigmoid V3. YaRN is in deepseek_yarn.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.deepseek_yarn import read_deepseek_yarn, write_deepseek_yarn
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    write_gguf_sizes,
)
from weft.checkpoint.families.hf_config import HFConfig, read_rope
from weft.checkpoint.families.llama import (
    GGUF_FEEDFORWARD,
    GGUF_NORMS,
    GGUF_SIZES,
    gguf_embedding_rules,
)
from weft.checkpoint.weight_rules import (
    Shape,
    WeightRule,
    concatenate,
    indexed,
    layer,
    layers,
    same,
    stacked_by_index,
    stacked_layers,
)
from weft.core.errors import UsageError, shown
from weft.models.config import ModelConfig
from weft.nn.config import MixtureOfExpertsConfig
from weft.nn.positions.config import RotaryConfig

if TYPE_CHECKING:
    from torch import Tensor

LATENT_EPS = 1e-6
"""Norms of latent rows do not use rms_norm_eps (which Moonlight sets to 1e-5)."""


def read_v2_hf(hf: HFConfig) -> ModelConfig:
    hf.require("scoring_func", "softmax", "softmax")
    hf.require("norm_topk_prob", False, False)
    methods = {"greedy": False, "group_limited_greedy": True}
    has_groups = hf.one_of("topk_method", methods, "greedy")
    router = {
        "scoring": "softmax",
        "normalise": False,
        "scale": hf.number("routed_scaling_factor", 1.0),
        "num_groups": hf.size("n_group") if has_groups else 1,
        "groups_per_token": hf.size("topk_group") if has_groups else 1,
    }
    return read_model(hf, "interleaved", router, dense_layers=0)


def read_v3_hf(hf: HFConfig) -> ModelConfig:
    hf.require("scoring_func", "sigmoid", "sigmoid")
    hf.require("topk_method", "noaux_tc", "noaux_tc")
    router = {
        "scoring": "sigmoid",
        "correction": True,
        "normalise": hf.flag("norm_topk_prob", True),
        "scale": hf.number("routed_scaling_factor", 2.5),
        "num_groups": hf.size("n_group", 8),
        "groups_per_token": hf.size("topk_group", 4),
        "group_score": "top2",
    }
    layout = "interleaved" if hf.flag("rope_interleave", True) else "halves"
    return read_model(hf, layout, router, dense_layers=3)


def read_model(
    hf: HFConfig, layout: str, router: Mapping[str, Any], dense_layers: int
) -> ModelConfig:
    """What V2 and V3 have in common. `dense_layers`: default of first_k_dense_replace."""
    hf.require("hidden_act", "silu", "silu")
    hf.require("mlp_bias", False, False)
    hf.require("moe_layer_freq", 1, 1)
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
    """Settings of MLA; YaRN changes the attention scale."""
    heads = hf.size("num_attention_heads")
    hf.require("num_key_value_heads", heads, heads)
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


def write_v2_hf(config: ModelConfig) -> dict[str, Any]:
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


def write_v3_hf(config: ModelConfig) -> dict[str, Any]:
    layout = getattr(config.position, "layout", "interleaved")
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": layout == "interleaved",
        "num_nextn_predict_layers": 0,
        **write_model(config, experts_of(config)),
    }


def experts_of(config: ModelConfig) -> MixtureOfExpertsConfig:
    """Settings of the experts; a UsageError if the model has none, or no shared ones."""
    experts = config.feedforward
    if experts.kind != "experts" or not experts.shared_experts:
        kind = experts.kind if experts.kind != "experts" else "experts without shared ones"
        raise UsageError(
            f"this model is not a DeepSeek: its feed-forward is {kind}, and must be experts with "
            "shared ones. Choose another family."
        )
    return experts


def write_model(config: ModelConfig, experts: MixtureOfExpertsConfig) -> dict[str, Any]:
    """What V2 and V3 have in common."""
    sizes, has_groups = write_latent_sizes(config), experts.groups_per_token < experts.num_groups
    return {
        **llama.write_common(config),
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


def write_latent_sizes(config: ModelConfig) -> dict[str, int | None]:
    """Sizes of MLA."""
    sizes = config.attention.latent_sizes(config.width)
    return {
        "kv_lora_rank": sizes.kv_rank,
        "q_lora_rank": config.attention.latent.query_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    rules = llama.embedding_rules(config)
    dense_width = config.dense_feedforward.inner_width(config.width)
    for i in range(config.num_layers):
        weft, hf = f"decoder.blocks.{i}", f"model.layers.{i}"
        rules += attention_rules(config, f"{weft}.attention", f"{hf}.self_attn")
        rules += layer(f"{weft}.attention_path.norm", f"{hf}.input_layernorm")
        rules += layer(f"{weft}.feedforward_path.norm", f"{hf}.post_attention_layernorm")
        if i < config.dense_layers:
            rules += gated_rules(f"{weft}.feedforward", f"{hf}.mlp", dense_width)
        else:
            rules += mixture_rules(config, f"{weft}.feedforward", f"{hf}.mlp")
    return rules


def attention_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    bias = config.attention.bias
    if config.attention.latent.query_rank is None:
        rules = layer(f"{weft}.query", f"{hf}.q_proj")
    else:
        rules = layer(f"{weft}.query.0", f"{hf}.q_a_proj", bias)
        rules += layer(f"{weft}.query.1", f"{hf}.q_a_layernorm")
        rules += layer(f"{weft}.query.2", f"{hf}.q_b_proj")
    rules += layer(f"{weft}.kv_down", f"{hf}.kv_a_proj_with_mqa", bias)
    rules += layer(f"{weft}.kv_norm", f"{hf}.kv_a_layernorm")
    rules += layer(f"{weft}.kv_up", f"{hf}.kv_b_proj")
    return rules + layer(f"{weft}.out", f"{hf}.o_proj", bias)


def gated_rules(weft: str, hf: str, width: int) -> list[WeightRule]:
    """A dense layer, or all shared experts together."""
    names = [f"{hf}.{part}_proj" for part in ("gate", "up")]
    rules = stacked_layers(f"{weft}.gate_up", names, (width, width))
    return rules + layer(f"{weft}.down", f"{hf}.down_proj")


def mixture_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    """Router, experts and shared experts of one layer."""
    experts = experts_of(config)
    width, count = experts.inner_width(config.width), experts.num_experts
    rules = [same(f"{weft}.router.weight_ED", f"{hf}.gate.weight")]
    if experts.correction:
        rules += [same(f"{weft}.router.correction_E", f"{hf}.gate.e_score_correction_bias")]
    rules += expert_rules(weft, f"{hf}.experts", count, width)
    return rules + gated_rules(
        f"{weft}.shared", f"{hf}.shared_experts", experts.shared_experts * width
    )


def expert_rules(weft: str, hf: str, count: int, width: int) -> list[WeightRule]:
    """Matrices of each expert, stacked along a new first axis."""
    gate_up = [f"{hf}.{e}.{part}_proj.weight" for e in range(count) for part in ("gate", "up")]
    down = [f"{hf}.{e}.down_proj.weight" for e in range(count)]
    return [
        stacked_by_index(f"{weft}.gate_up_EFD", gate_up, count, width),
        indexed(f"{weft}.down_EDF", down),
    ]


GGUF_QUERY = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
}
GGUF_ATTENTION = {
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.o_proj": "attn_output",
}
GGUF_SHARED = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
SOFTMAX, SIGMOID = 1, 2
"""Values of expert_gating_func."""


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    gguf.require("nextn_predict_layers", 0)
    gating = gguf.get("expert_gating_func", SOFTMAX)
    if gating not in (SOFTMAX, SIGMOID):
        gguf.fail("expert_gating_func", shown(gating), "1 (softmax) or 2 (sigmoid)")
    sizes = gguf.sizes(GGUF_SIZES)
    return {
        "hidden_act": "silu",
        "vocab_size": gguf.rows("token_embd.weight"),
        **sizes,
        "num_key_value_heads": sizes["num_attention_heads"],
        "rms_norm_eps": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "attention_bias": False,
        **read_gguf_latent_sizes(gguf),
        **read_gguf_experts(gguf, gating),
        **read_deepseek_yarn(gguf),
    }


def read_gguf_latent_sizes(gguf: GGUFMetadata) -> dict[str, Any]:
    """Sizes of MLA. Files with k_b and v_b have them under keys that end in _mla."""
    rope = gguf.size("rope.dimension_count")
    key = gguf.size("attention.key_length_mla", gguf.get("attention.key_length"))
    value = gguf.size("attention.value_length_mla", gguf.get("attention.value_length"))
    if key <= rope:
        gguf.fail("attention.key_length", shown(key), f"above rope.dimension_count, {rope}")
    return {
        "kv_lora_rank": gguf.size("attention.kv_lora_rank"),
        "q_lora_rank": gguf.count("attention.q_lora_rank", 0) or None,
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }


def read_gguf_experts(gguf: GGUFMetadata, gating: int) -> dict[str, Any]:
    groups = gguf.size("expert_group_count", 1)
    is_v3 = gating == SIGMOID
    v2_method = "group_limited_greedy" if groups > 1 else "greedy"
    return {
        "architectures": ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if is_v3 else "deepseek_v2",
        "scoring_func": "sigmoid" if is_v3 else "softmax",
        "topk_method": "noaux_tc" if is_v3 else v2_method,
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


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    for key, supported in (("hidden_act", "silu"), ("attention_bias", False)):
        check_writable(hf, key, supported)
    check_writable(hf, "moe_layer_freq", 1)
    check_writable(hf, "rope_interleave", True)
    rank, rope = hf.size("kv_lora_rank"), hf.size("qk_rope_head_dim")
    query_rank = hf.get("q_lora_rank")
    return {
        "deepseek2.vocab_size": hf.size("vocab_size"),
        **write_gguf_sizes(hf, "deepseek2", GGUF_SIZES, max_position_embeddings=2048),
        # as the cache sees it: one head of the latent row and the rotated part
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": rank + rope,
        "deepseek2.attention.value_length": rank,
        "deepseek2.attention.key_length_mla": hf.size("qk_nope_head_dim") + rope,
        "deepseek2.attention.value_length_mla": hf.size("v_head_dim"),
        "deepseek2.attention.kv_lora_rank": rank,
        **({} if query_rank is None else {"deepseek2.attention.q_lora_rank": query_rank}),
        "deepseek2.attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps", 1e-6),
        "deepseek2.rope.dimension_count": rope,
        **write_gguf_experts(hf),
        **write_deepseek_yarn(hf, "deepseek2"),
    }


def write_gguf_experts(hf: HFConfig) -> dict[str, Any]:
    is_v3 = hf.get("model_type") == "deepseek_v3"
    has_groups = is_v3 or hf.get("topk_method") == "group_limited_greedy"
    values = {
        "leading_dense_block_count": int(hf.number("first_k_dense_replace", 3 if is_v3 else 0)),
        "expert_feed_forward_length": hf.size("moe_intermediate_size"),
        "expert_count": hf.size("n_routed_experts"),
        "expert_shared_count": hf.size("n_shared_experts"),
        "expert_used_count": hf.size("num_experts_per_tok"),
        "expert_weights_scale": hf.number("routed_scaling_factor", 2.5 if is_v3 else 1.0),
        "expert_weights_norm": hf.flag("norm_topk_prob", is_v3),
        "expert_gating_func": SIGMOID if is_v3 else SOFTMAX,
        "expert_group_count": hf.size("n_group", 8 if is_v3 else 1) if has_groups else 1,
        "expert_group_used_count": hf.size("topk_group", 4 if is_v3 else 1) if has_groups else 1,
    }
    return {f"deepseek2.{key}": value for key, value in values.items()}


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = gguf_embedding_rules(values)
    for i in range(int(values["num_hidden_layers"])):
        hf, gguf = f"model.layers.{i}", f"blk.{i}"
        rules += layers(hf, gguf, GGUF_NORMS | GGUF_ATTENTION)
        has_rank = values.get("q_lora_rank") is not None
        rules += layers(hf, gguf, GGUF_QUERY if has_rank else {"self_attn.q_proj": "attn_q"})
        rules.append(split_kv_b(values, f"{hf}.self_attn.kv_b_proj.weight", gguf))
        if not has_experts(values, i):
            rules += layers(hf, gguf, GGUF_FEEDFORWARD)
            continue
        rules += layers(hf, gguf, GGUF_SHARED)
        if values.get("model_type") == "deepseek_v3":
            bias = f"{hf}.mlp.gate.e_score_correction_bias"
            rules.append(same(bias, f"{gguf}.exp_probs_b.bias"))
    return rules


def legacy_gguf_rules(values: HFValues) -> list[WeightRule]:
    """kv_b as one tensor."""
    return [
        rule
        for i in range(int(values["num_hidden_layers"]))
        for rule in layer(f"model.layers.{i}.self_attn.kv_b_proj", f"blk.{i}.attn_kv_b")
    ]


def has_experts(values: HFValues, index: int) -> bool:
    default = 3 if values.get("model_type") == "deepseek_v3" else 0
    first = values.get("first_k_dense_replace")
    return index >= (default if first is None else int(first))


def split_kv_b(values: HFValues, hf: str, gguf: str) -> WeightRule:
    """[heads * (nope + value), rank] <-> k_b [heads, rank, nope] and v_b [heads, value, rank]."""
    heads = int(values["num_attention_heads"])
    sizes = [int(values["qk_nope_head_dim"]), int(values["v_head_dim"])]

    def join(parts: list[Tensor]) -> Tensor:
        return concatenate([parts[0].transpose(1, 2), parts[1]], 1).flatten(0, 1)

    def split(whole: Tensor) -> list[Tensor]:
        k_b, v_b = whole.unflatten(0, (heads, -1)).split(sizes, 1)
        return [k_b.transpose(1, 2), v_b]

    def shape(shapes: list[Shape]) -> Shape:
        (k_heads, k_rank, nope), (v_heads, value, v_rank) = shapes
        if (k_heads, k_rank) != (v_heads, v_rank):
            raise ValueError(f"{shapes[0]} and {shapes[1]} differ in heads or rank")
        return k_heads * (nope + value), k_rank

    names = (f"{gguf}.attn_k_b.weight", f"{gguf}.attn_v_b.weight")
    return WeightRule(hf, names, join, split, shape=shape)


def gguf_stacks(values: HFValues) -> dict[str, list[str]]:
    """The experts of each layer."""
    experts = range(int(values["n_routed_experts"]))
    return {
        f"blk.{i}.ffn_{part}_exps.weight": [
            f"model.layers.{i}.mlp.experts.{expert}.{part}_proj.weight" for expert in experts
        ]
        for i in range(int(values["num_hidden_layers"]))
        if has_experts(values, i)
        for part in ("gate", "up", "down")
    }


GGUF = GGUFArchitecture(
    name="deepseek2",
    read_gguf=read_gguf,
    write_gguf=write_gguf,
    rules=gguf_rules,
    legacy_rules=legacy_gguf_rules,
    stacks=gguf_stacks,
    dropped=llama.IGNORED,
)
DEEPSEEK_V2 = replace(
    llama.FAMILY,
    name="deepseek_v2",
    model_types=("deepseek_v2",),
    read_hf=read_v2_hf,
    rules=rules,
    write_hf=write_v2_hf,
    gguf=GGUF,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    model_types=("deepseek_v3",),
    read_hf=read_v3_hf,
    write_hf=write_v3_hf,
    # layer 61: multi-token prediction; nothing but its number distinguishes it
    ignored=(*llama.IGNORED, r"model\.layers\.61\..*"),
)
