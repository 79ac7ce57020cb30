"""The mixture of experts against an obvious loop and against DeepSeek-V2 and V3."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

from weft.core.errors import ConfigError
from weft.native import packed
from weft.nn.config import MixtureOfExpertsConfig
from weft.nn.mixture_of_experts import MixtureOfExperts, Router
from weft.nn.packed_modules import PackedRouter, pack_model, unpack_model

B, T, D, E, WIDTH = 2, 7, 12, 8, 20

V2 = MixtureOfExpertsConfig(
    num_experts=E,
    experts_per_token=3,
    shared_experts=2,
    width=WIDTH,
    num_groups=4,
    groups_per_token=2,
    normalise=False,
    scale=1.7,
)
V3 = MixtureOfExpertsConfig(
    num_experts=E,
    experts_per_token=3,
    shared_experts=1,
    width=WIDTH,
    scoring="sigmoid",
    correction=True,
    num_groups=4,
    groups_per_token=2,
    group_score="top2",
    scale=2.5,
)
SIMPLE = MixtureOfExpertsConfig(num_experts=E, experts_per_token=2, shared_experts=0, width=WIDTH)
ALL = {"v2": V2, "v3": V3, "simple": SIMPLE}


def build(config: MixtureOfExpertsConfig) -> MixtureOfExperts:
    experts = MixtureOfExperts(config, D)
    if experts.router.correction_E is not None:
        experts.router.correction_E.normal_()
    return experts


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (F.silu(gate) * up)


def by_token(experts: MixtureOfExperts, x_BTD: Tensor) -> Tensor:
    """The formula, one token and one expert at a time."""
    rows = []
    for x in x_BTD.flatten(0, 1):
        chosen, share = experts.router(x[None])
        y = torch.zeros(D)
        for e, p in zip(chosen[0].tolist(), share[0], strict=True):
            y = y + p * swiglu(x, experts.gate_up_EFD[e], experts.down_EDF[e])
        if experts.shared is not None:
            y = y + swiglu(x, experts.shared.gate_up.weight, experts.shared.down.weight)
        rows.append(y)
    return torch.stack(rows).view_as(x_BTD)


@pytest.mark.parametrize("name", ALL)
def test_sorted_by_expert_gives_what_one_token_at_a_time_gives(name: str) -> None:
    experts, x_BTD = build(ALL[name]), torch.randn(B, T, D)
    torch.testing.assert_close(experts(x_BTD), by_token(experts, x_BTD), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_token_is_independent_of_the_others(name: str) -> None:
    experts, x_BTD = build(ALL[name]), torch.randn(B, T, D)
    y_BTD, order = experts(x_BTD), torch.randperm(T)
    torch.testing.assert_close(experts(x_BTD[:, order]), y_BTD[:, order], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(experts(x_BTD[1:, 3:4]), y_BTD[1:, 3:4], atol=1e-6, rtol=1e-5)


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packed for the library and for torch."""
    if request.param == "torch":
        monkeypatch.setattr(packed, "native", lambda: None)
    return request.param


@pytest.mark.parametrize("name", ALL)
def test_packed_experts_give_a_token_the_same_bits_in_any_company(name: str, way: str) -> None:
    experts, x_BTD = build(ALL[name]).eval(), torch.randn(1, 40, D)
    plain = experts(x_BTD)
    experts = pack_model(experts)
    with torch.inference_mode():
        together = experts(x_BTD)
        torch.testing.assert_close(together, plain, atol=1e-5, rtol=1e-5)
        for start, end in ((0, 1), (7, 8), (3, 10), (20, 40)):
            assert experts(x_BTD[:, start:end]).equal(together[:, start:end])


@pytest.mark.parametrize("name", ALL)
def test_packed_experts_hold_their_numbers_once_and_give_them_back(name: str) -> None:
    experts, x_BTD = build(ALL[name]).eval(), torch.randn(B, T, D)
    state = {key: tensor.clone() for key, tensor in experts.state_dict().items()}
    plain = experts(x_BTD)
    experts = pack_model(experts)
    assert all(weight.untyped_storage().nbytes() == 4 for weight in experts.parameters())
    assert {key: tuple(t.shape) for key, t in experts.named_parameters()} == {
        key: tuple(state[key].shape) for key, _ in experts.named_parameters()
    }
    assert experts(x_BTD).equal(plain), "with gradients"
    assert all(tensor.equal(state[key]) for key, tensor in experts.state_dict().items())
    other = unpack_model(copy.deepcopy(experts)).train()
    assert all(tensor.equal(state[key]) for key, tensor in other.state_dict().items())
    assert type(experts.router) is PackedRouter


def copy_weights(ours: MixtureOfExperts, theirs: nn.Module) -> None:
    """Random weights on their side, the same on ours."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    w = theirs.state_dict()
    names = {
        "router.weight_ED": w["gate.weight"],
        "gate_up_EFD": w["experts.gate_up_proj"],
        "down_EDF": w["experts.down_proj"],
        "shared.gate_up.weight": torch.cat(
            (w["shared_experts.gate_proj.weight"], w["shared_experts.up_proj.weight"])
        ),
        "shared.down.weight": w["shared_experts.down_proj.weight"],
    }
    if "gate.e_score_correction_bias" in w:
        theirs.gate.e_score_correction_bias.normal_()
        names["router.correction_E"] = theirs.gate.e_score_correction_bias
    ours.load_state_dict(names)


def common(config: MixtureOfExpertsConfig) -> dict[str, Any]:
    return {
        "hidden_size": D,
        "num_attention_heads": 3,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": E,
        "num_experts_per_tok": config.experts_per_token,
        "n_shared_experts": config.shared_experts,
        "n_group": config.num_groups,
        "topk_group": config.groups_per_token,
        "routed_scaling_factor": config.scale,
        "norm_topk_prob": config.normalise,
    }


@pytest.mark.parametrize("groups_per_token", [1, 2, 4])
def test_against_deepseek_v3(groups_per_token: int) -> None:
    config = V3.with_changes({"groups_per_token": groups_per_token, "experts_per_token": 2})
    ours, theirs = MixtureOfExperts(config, D), DeepseekV3MoE(DeepseekV3Config(**common(config)))
    copy_weights(ours, theirs)
    x_BTD = torch.randn(B, 50, D)
    torch.testing.assert_close(ours(x_BTD), theirs(x_BTD), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_against_deepseek_v2(method: str) -> None:
    groups = {"num_groups": 1, "groups_per_token": 1} if method == "greedy" else {}
    config = V2.with_changes(groups)
    theirs = DeepseekV2Moe(DeepseekV2Config(**common(config), topk_method=method))
    ours = MixtureOfExperts(config, D)
    copy_weights(ours, theirs)
    x_BTD = torch.randn(B, 50, D)
    torch.testing.assert_close(ours(x_BTD), theirs(x_BTD), atol=1e-5, rtol=1e-5)


def test_the_correction_moves_the_choice_and_not_the_share() -> None:
    config = V3.with_changes({"num_groups": 1, "groups_per_token": 1, "normalise": False})
    router, x_ND = Router(config, D), torch.randn(5, D)
    assert router.correction_E is not None
    router.correction_E[6] = 100.0
    chosen, share = router(x_ND)
    assert (chosen[:, 0] == 6).all()
    score = torch.sigmoid(x_ND @ router.weight_ED[6])
    torch.testing.assert_close(share[:, 0], score * config.scale)


def test_shares_sum_to_the_scale_where_they_are_normalised() -> None:
    _, share = Router(V3, D)(torch.randn(5, D))
    torch.testing.assert_close(share.sum(-1), torch.full((5,), V3.scale))


def test_experts_come_from_the_allowed_groups() -> None:
    chosen, _ = build(V3).router(torch.randn(100, D))
    groups = chosen // V3.group_size
    assert all(len(set(row)) <= V3.groups_per_token for row in groups.tolist())


def test_gradients_are_exact_and_idle_experts_get_none() -> None:
    config = MixtureOfExpertsConfig(num_experts=4, experts_per_token=2, shared_experts=1, width=3)
    experts = MixtureOfExperts(config, 4).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in experts.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(experts, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *experts.parameters()))
    chosen, _ = experts.router(x[0, :1])
    experts(x[:, :1]).sum().backward()
    busy = set(chosen.flatten().tolist())
    for e in range(4):
        assert (experts.gate_up_EFD.grad[e].abs().sum() > 0) == (e in busy)


def test_default_width_costs_a_token_what_a_swiglu_layer_costs() -> None:
    config = MixtureOfExpertsConfig(num_experts=16, experts_per_token=3, shared_experts=1)
    assert config.inner_width(768) == 512  # 2048 / 4
    assert MixtureOfExperts(config, 24).gate_up_EFD.shape == (16, 2 * 64, 24)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_groups": 3}, r"num_experts is 8 but num_groups is 3.*divides the experts"),
        ({"groups_per_token": 2}, r"groups_per_token is 2 but num_groups is 1.*Use at most 1"),
        ({"experts_per_token": 9}, r"experts_per_token is 9 but a token can choose among 8"),
        (
            {"experts_per_token": 3, "num_groups": 4},
            r"experts_per_token is 3 but a token can choose among 2 \(.*1 of 4 groups\)",
        ),
        (
            {"num_groups": 8, "groups_per_token": 2, "group_score": "top2"},
            r"group_score is top2 but a group has 1 expert.*group_score = max",
        ),
        ({"scoring": "relu"}, r"scoring is 'relu': allowed are softmax, sigmoid"),
        ({"scale": 0.0}, r"scale is 0.0: it must be greater than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixtureOfExpertsConfig(**changes)
