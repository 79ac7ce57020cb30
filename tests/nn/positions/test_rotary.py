"""Rotary positions and each scaling rule against Hugging Face's models; bits and messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama

from weft.core.errors import ConfigError
from weft.nn.positions.config import PositionShape, RotaryConfig, YarnScaling
from weft.nn.positions.encodings import build_position
from weft.nn.positions.rope_scaling import inv_freq
from weft.nn.positions.rotary import Rotary

B, T, H, O = 2, 5, 3, 16  # noqa: E741  the letter key's own name
MAX_LEN = 32

YARN = {"factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0}
LLAMA3 = {"factor": 8.0}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: (our settings, theirs)
    "none": ({"kind": "none"}, {"rope_type": "default"}),
    "linear": ({"kind": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "dynamic": (
        {"kind": "dynamic", "factor": 2.0, "original_max_len": MAX_LEN},
        {"rope_type": "dynamic", "factor": 2.0},
    ),
    "yarn": (
        {"kind": "yarn", "original_max_len": MAX_LEN, **YARN},
        {"rope_type": "yarn", "original_max_position_embeddings": MAX_LEN, **YARN},
    ),
    "yarn, defaults": (
        {"kind": "yarn", "factor": 4.0, "original_max_len": 4096},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    ),
    "yarn, mscale": (
        {"kind": "yarn", "original_max_len": 500, "mscale": 0.7, "mscale_all_dim": 0.4, **YARN},
        {
            "rope_type": "yarn",
            "original_max_position_embeddings": 500,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
            **YARN,
        },
    ),
    "yarn, not truncated": (
        {"kind": "yarn", "original_max_len": 700, "truncate": False, **YARN},
        {
            "rope_type": "yarn",
            "original_max_position_embeddings": 700,
            "truncate": False,
            **YARN,
        },
    ),
    "yarn, no ramp": (
        {"kind": "yarn", "factor": 3.0, "original_max_len": 6, "attention_factor": 1.5},
        {
            "rope_type": "yarn",
            "factor": 3.0,
            "original_max_position_embeddings": 6,
            "attention_factor": 1.5,
        },
    ),
    "llama3": (
        {
            "kind": "llama3",
            "low_frequency_factor": 1.5,
            "high_frequency_factor": 5.0,
            "original_max_len": 3000,
            **LLAMA3,
        },
        {
            "rope_type": "llama3",
            "low_freq_factor": 1.5,
            "high_freq_factor": 5.0,
            "original_max_position_embeddings": 3000,
            **LLAMA3,
        },
    ),
}


def shape(rotary_size: int = O) -> PositionShape:
    return PositionShape(
        width=H * O,
        num_heads=H,
        head_size=O,
        rotary_size=rotary_size,
        num_layers=2,
        max_len=MAX_LEN,
        is_causal=True,
    )


def build(rotary_size: int = O, **settings: Any) -> Rotary:
    position = build_position(RotaryConfig(**settings), shape(rotary_size))
    assert isinstance(position, Rotary)
    return position


def their_config(rule: dict[str, Any], base: float, kind: type = LlamaConfig, **more: Any) -> Any:
    return kind(
        hidden_size=H * O,
        num_attention_heads=H,
        max_position_embeddings=MAX_LEN,
        rope_parameters={"rope_theta": base, **rule},
        **more,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_positions", [20, 100])
def test_each_rule_turns_as_llama(rule: str, num_positions: int) -> None:
    ours, theirs = RULES[rule]
    base = 5000.0
    x_BTHO = torch.randn(B, num_positions, H, O)
    positions_1T = torch.arange(num_positions)[None]
    rotary = llama.LlamaRotaryEmbedding(their_config(theirs, base))
    cos, sin = rotary(x_BTHO, positions_1T)
    expected, _ = llama.apply_rotary_pos_emb(x_BTHO, x_BTHO, cos, sin, unsqueeze_dim=2)
    rotated = build(base=base, scaling=ours).rotate(x_BTHO, positions_1T, num_positions)
    torch.testing.assert_close(rotated, expected, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "none"])
def test_each_rule_has_their_speeds_for_a_part_of_the_head(rule: str) -> None:
    ours, theirs = RULES[rule]
    partial = {**theirs, "partial_rotary_factor": 0.5}
    theirs_made = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](their_config(partial, 777.0))
    position = build(base=777.0, fraction=0.5, scaling=ours)
    assert position.size == O // 2
    scaling = position.config.scaling
    torch.testing.assert_close(
        inv_freq(scaling, 777.0, O // 2, 1), theirs_made[0], rtol=1e-6, atol=0
    )
    assert scaling.attention_scaling == pytest.approx(theirs_made[1])


def test_a_part_of_the_head_turns_and_the_rest_stays() -> None:
    x_BTHO, positions_1T = torch.randn(B, T, H, O), torch.arange(3, 3 + T)[None]
    rotated = build(fraction=0.25).rotate(x_BTHO, positions_1T, T)
    small = build(rotary_size=4).rotate(x_BTHO[..., :4], positions_1T, T)
    assert torch.equal(rotated[..., :4], small)
    assert torch.equal(rotated[..., 4:], x_BTHO[..., 4:])


def test_interleaved_turns_as_gptj() -> None:
    x_BTHO, positions_BT = (
        torch.randn(B, T, H, O),
        torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]]),
    )
    table = gptj.create_sinusoidal_positions(MAX_LEN, O)[positions_BT]
    sin, cos = table.chunk(2, dim=-1)
    expected = gptj.apply_rotary_pos_emb(x_BTHO, sin, cos)
    rotated = build(layout="interleaved").rotate(x_BTHO, positions_BT, T)
    torch.testing.assert_close(rotated, expected)


DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}
OUR_DEEPSEEK_YARN = {
    "kind": "yarn",
    "factor": 40.0,
    "original_max_len": 64,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}


def test_interleaved_turns_as_deepseek_v2() -> None:
    x_BTHO, positions_1T = torch.randn(B, 70, H, O), torch.arange(70)[None]
    config = their_config(DEEPSEEK_YARN, 10000.0, DeepseekV2Config, qk_rope_head_dim=O)
    turns = deepseek_v2.DeepseekV2RotaryEmbedding(config)(x_BTHO, positions_1T)
    x_BHTO = x_BTHO.transpose(1, 2)
    expected, _ = deepseek_v2.apply_rotary_emb(x_BHTO, x_BHTO, turns)
    position = build(layout="interleaved", scaling=OUR_DEEPSEEK_YARN)
    rotated = position.rotate(x_BTHO, positions_1T, 70)
    torch.testing.assert_close(rotated, expected.transpose(1, 2), atol=5e-6, rtol=1e-5)


def test_scores_are_deepseek_v3s_whose_result_lies_in_another_order() -> None:
    q_BTHO, k_BTHO = torch.randn(B, 70, H, O), torch.randn(B, 70, H, O)
    positions_1T = torch.arange(70)[None]
    config = their_config(DEEPSEEK_YARN, 10000.0, DeepseekV3Config, qk_rope_head_dim=O)
    cos, sin = deepseek_v3.DeepseekV3RotaryEmbedding(config)(q_BTHO, positions_1T)
    q, k = deepseek_v3.apply_rotary_pos_emb_interleave(q_BTHO, k_BTHO, cos, sin, unsqueeze_dim=2)
    position = build(layout="interleaved", scaling=OUR_DEEPSEEK_YARN)
    ours = scores(position, q_BTHO, k_BTHO, positions_1T)
    torch.testing.assert_close(ours, torch.einsum("btho,bsho->bhts", q, k), atol=5e-5, rtol=1e-5)
    expected = deepseek_v3.yarn_apply_mscale(config.rope_parameters, 1.0)
    assert position.config.scaling.softmax_factor == pytest.approx(expected)
    assert YarnScaling(factor=40, original_max_len=64).softmax_factor == 1.0


def scores(position: Rotary, q_BTHO: Tensor, k_BTHO: Tensor, positions: Tensor) -> Tensor:
    q = position.rotate(q_BTHO, positions, 1)
    k = position.rotate(k_BTHO, positions, 1)
    return torch.einsum("btho,bsho->bhts", q, k)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_scores_depend_on_the_distance_alone(layout: str) -> None:
    position = build(layout=layout, fraction=0.75)
    q_BTHO, k_BTHO = torch.randn(2, B, T, H, O).unbind()
    here = scores(position, q_BTHO, k_BTHO, torch.arange(T)[None])
    there = scores(position, q_BTHO, k_BTHO, torch.arange(T)[None] + 300)
    torch.testing.assert_close(here, there, atol=2e-4, rtol=0)
    other = scores(position, q_BTHO, k_BTHO, torch.arange(T)[None] * 2)
    assert (here - other).abs().max() > 0.1


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("rule", ["none", "yarn", "dynamic"])
def test_a_token_has_the_same_bits_alone_and_among_others(layout: str, rule: str) -> None:
    x_BTHO = torch.randn(3, 70, H, O)
    lengths_B = torch.tensor([70, 20, 41])
    both = build(layout=layout, scaling=RULES[rule][0])
    whole = both.rotate(x_BTHO, torch.arange(70)[None], lengths_B)
    for b, t in [(0, 69), (1, 19), (2, 33), (2, 0)]:
        fresh = build(layout=layout, scaling=RULES[rule][0])
        one = fresh.rotate(x_BTHO[b : b + 1, t : t + 1], torch.tensor([[t]]), int(lengths_B[b]))
        assert torch.equal(one[0, 0], whole[b, t])


def test_dynamic_angles_grow_with_each_sequence_beyond_the_original_length() -> None:
    position = build(scaling=RULES["dynamic"][0])
    assert position.config.max_cached_len == MAX_LEN and build().config.max_cached_len is None
    x_BTHO, positions_1T = torch.randn(B, T, H, O), torch.arange(T)[None]
    plain = build().rotate(x_BTHO, positions_1T, T)
    assert torch.equal(position.rotate(x_BTHO, positions_1T, MAX_LEN), plain)
    mixed = position.rotate(x_BTHO, positions_1T, torch.tensor([MAX_LEN, 2 * MAX_LEN]))
    assert torch.equal(mixed[0], plain[0])
    assert not torch.allclose(mixed[1], plain[1], atol=1e-3)


def test_layers_share_one_look_up_and_new_positions_get_their_own() -> None:
    position, x_BTHO = build(), torch.randn(1, 1, H, O)
    step = torch.tensor([[3]])
    first = position.cos_sin_at(step, 4, torch.float32)
    assert position.cos_sin_at(step, 4, torch.float32) is first
    assert position.cos_sin_at(step, 4, torch.bfloat16)[0].dtype == torch.bfloat16
    before = position.rotate(x_BTHO, step, 4)
    step += 1
    expected = build().rotate(x_BTHO, torch.tensor([[4]]), 5)
    assert torch.equal(position.rotate(x_BTHO, step, 5), expected)
    assert not torch.equal(before, expected)


def test_the_input_is_left_as_it_was_and_gradients_are_exact() -> None:
    for layout in ("halves", "interleaved"):
        position = build(layout=layout, fraction=0.5)
        x_BTHO = torch.randn(1, 2, H, O, dtype=torch.float64, requires_grad=True)
        before = x_BTHO.detach().clone()
        positions_1T = torch.tensor([[2, 9]])
        assert torch.autograd.gradcheck(lambda x: position.rotate(x, positions_1T, 1), x_BTHO)  # noqa: B023
        assert torch.equal(x_BTHO, before)


@pytest.mark.parametrize(
    ("rotary_size", "settings", "message"),
    [
        (7, {}, r"would rotate 7 elements of a head \(fraction 1 of 7\).*even and at least 2"),
        (12, {"fraction": 0.25}, r"would rotate 3 elements of a head \(fraction 0.25 of 12\)"),
        (
            4,
            {"fraction": 0.1},
            r"would rotate 0 elements .* Change the head size or position.fraction",
        ),
        (2, {"scaling": RULES["dynamic"][0]}, r"would rotate 2 elements .* at least 4"),
    ],
)
def test_a_size_without_pairs_is_refused(
    rotary_size: int, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(rotary_size, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "yarn", "factor": 2, "original_max_len": 8, "beta_fast": 1, "beta_slow": 4},
            r"in scaling: beta_fast is 1.0 but beta_slow is 4.0: .*at least 4.0",
        ),
        (
            {"kind": "llama3", "high_frequency_factor": 1.0},
            r"high_frequency_factor is 1.0 but low_frequency_factor is 1.0: .*above 1.0",
        ),
        ({"kind": "linear"}, r"scaling.factor is missing"),
        ({"kind": "linear", "factor": 0.5}, r"scaling.factor is 0.5: it must be greater than"),
        ({"kind": "yarm"}, r"scaling.kind is 'yarm'.*Did you mean 'yarn'"),
    ],
)
def test_scaling_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RotaryConfig(scaling=settings)


def test_equal_betas_are_allowed_as_kimi_k2_has_them() -> None:
    scaling = YarnScaling(factor=32, original_max_len=4096, beta_fast=1, beta_slow=1)
    assert inv_freq(scaling, 50000.0, O, 1).isfinite().all()
