"""DeepSeek-V3 against `transformers`: MLA in both forms, interleaved rotary, dense first layer,
experts."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import State, gated, load, shake, stack, take


def deepseek_state(source: State, num_layers: int, *, query_rank: int | None) -> State:
    state: State = {}
    take(state, "decoder.embedding.words", "model.embed_tokens", source)
    take(state, "decoder.norm", "model.norm", source)
    take(state, "head", "lm_head", source)
    for i in range(num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
        take(state, f"{ours}.attention_path.norm", f"{theirs}.input_layernorm", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.post_attention_layernorm", source)
        attention_state(state, f"{ours}.attention", f"{theirs}.self_attn", source, query_rank)
        if i == 0:
            gated(state, f"{ours}.feedforward", f"{theirs}.mlp", source)
        else:
            experts_state(state, f"{ours}.feedforward", f"{theirs}.mlp", source)
    return state


def attention_state(
    state: State, ours: str, theirs: str, source: State, query_rank: int | None
) -> None:
    if query_rank is None:
        take(state, f"{ours}.query", f"{theirs}.q_proj", source)
    else:
        take(state, f"{ours}.query.0", f"{theirs}.q_a_proj", source)
        take(state, f"{ours}.query.1", f"{theirs}.q_a_layernorm", source)
        take(state, f"{ours}.query.2", f"{theirs}.q_b_proj", source)
    take(state, f"{ours}.kv_down", f"{theirs}.kv_a_proj_with_mqa", source)
    take(state, f"{ours}.kv_norm", f"{theirs}.kv_a_layernorm", source)
    take(state, f"{ours}.kv_up", f"{theirs}.kv_b_proj", source)
    take(state, f"{ours}.out", f"{theirs}.o_proj", source)


def experts_state(state: State, ours: str, theirs: str, source: State) -> None:
    state[f"{ours}.router.weight_ED"] = source[f"{theirs}.gate.weight"]
    state[f"{ours}.router.correction_E"] = source[f"{theirs}.gate.e_score_correction_bias"]
    state[f"{ours}.gate_up_EFD"] = source[f"{theirs}.experts.gate_up_proj"]
    state[f"{ours}.down_EDF"] = source[f"{theirs}.experts.down_proj"]
    names = [f"{theirs}.shared_experts.{part}_proj" for part in ("gate", "up")]
    stack(state, f"{ours}.shared.gate_up", names, source)
    take(state, f"{ours}.shared.down", f"{theirs}.shared_experts.down_proj", source)


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize("form", ["expanded", "absorbed", "auto"])
@pytest.mark.parametrize("query_rank", [None, 20])
@pytest.mark.parametrize("is_yarn", [False, True], ids=["plain", "yarn"])
def test_deepseek_v3_gives_the_same_logits(
    form: str, query_rank: int | None, is_yarn: bool
) -> None:
    theirs = DeepseekV3Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=2,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        kv_lora_rank=24,
        q_lora_rank=query_rank,
        qk_nope_head_dim=10,
        qk_rope_head_dim=6,
        v_head_dim=14,
        max_position_embeddings=64,
        rope_parameters=YARN if is_yarn else {"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
        num_mtp_layers=0,
    )
    original = shake(DeepseekV3ForCausalLM(theirs))
    scaling = {"kind": "none"}
    scale = 16**-0.5
    if is_yarn:
        magnitude = 0.1 * torch.log(torch.tensor(4.0)).item() + 1.0
        scale *= magnitude**2
        scaling = {
            "kind": "yarn",
            "factor": 4.0,
            "original_max_len": 16,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    config = ModelConfig(
        kind="decoder",
        vocab_size=61,
        width=32,
        num_layers=3,
        max_len=64,
        dropout=0.0,
        attention={
            "kind": "mla",
            "num_heads": 4,
            "scale": scale,
            "latent": {
                "kv_rank": 24,
                "query_rank": query_rank,
                "nope_size": 10,
                "rope_size": 6,
                "value_size": 14,
                "form": form,
            },
        },
        position={"kind": "rotary", "layout": "interleaved", "scaling": scaling},
        feedforward={
            "kind": "experts",
            "num_experts": 8,
            "experts_per_token": 3,
            "shared_experts": 2,
            "width": 20,
            "scoring": "sigmoid",
            "correction": True,
            "num_groups": 4,
            "groups_per_token": 2,
            "group_score": "top2",
            "normalise": True,
            "scale": theirs.routed_scaling_factor,
        },
        dense_layers=1,
        dense_feedforward={"kind": "swiglu", "width": 48},
        norm={"kind": "rmsnorm", "placement": "before", "eps": 1e-6},
        embedding={"tied": "none"},
    )
    state = deepseek_state(original.state_dict(), 3, query_rank=query_rank)
    model = load(build_model(config), state)
    ids_BT = torch.randint(0, 61, (2, 29), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected, got = original(ids_BT).logits, model(ForwardBatch(ids_BT))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
