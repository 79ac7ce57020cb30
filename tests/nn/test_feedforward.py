"""Every feed-forward layer against its formula; sizes, biases, dropout and messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GemmaConfig, LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP

from weft.core.config import Config
from weft.core.errors import ConfigError
from weft.nn.config import FeedForwardConfig, GatedMLPConfig, MLPConfig
from weft.nn.feedforward import FEEDFORWARDS, GatedMLP, build_feedforward

B, T, D, WIDTH = 2, 5, 12, 28
THEIRS = {"hidden_size": D, "intermediate_size": WIDTH, "num_attention_heads": 3}


class Holder(Config):
    feedforward: FeedForwardConfig


def build(kind: str, **settings: object) -> nn.Module:
    config = Holder.from_dict({"feedforward": {"kind": kind, **settings}}).feedforward
    return build_feedforward(config, D)


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


PLAIN = {"relu": F.relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
GATED = {"swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh, "reglu": F.relu}


@pytest.mark.parametrize("kind", FEEDFORWARDS)
def test_each_token_goes_through_by_itself(kind: str) -> None:
    layer, x_BTD = build(kind).eval(), torch.randn(B, T, D)
    y_BTD = layer(x_BTD)
    assert y_BTD.shape == (B, T, D)
    torch.testing.assert_close(layer(x_BTD[1:, 3:4]), y_BTD[1:, 3:4])


@pytest.mark.parametrize("kind", FEEDFORWARDS)
def test_every_weight_gets_a_gradient(kind: str) -> None:
    layer = build(kind)
    layer(torch.randn(B, 40, D)).pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


@pytest.mark.parametrize(("kind", "act"), PLAIN.items())
@pytest.mark.parametrize("bias", [True, False])
def test_plain_layers_are_their_formula(
    kind: str, act: Callable[[Tensor], Tensor], bias: bool
) -> None:
    layer, x_BTD = build(kind, width=WIDTH, bias=bias), torch.randn(B, T, D)
    w = layer.state_dict()
    assert len(w) == (4 if bias else 2)
    inner = x_BTD @ w["up.weight"].T + w.get("up.bias", 0)
    expected = act(inner) @ w["down.weight"].T + w.get("down.bias", 0)
    torch.testing.assert_close(layer(x_BTD), expected)


@pytest.mark.parametrize(("kind", "act"), GATED.items())
@pytest.mark.parametrize("bias", [True, False])
def test_gated_layers_are_their_formula(
    kind: str, act: Callable[[Tensor], Tensor], bias: bool
) -> None:
    layer, x_BTD = build(kind, width=WIDTH, bias=bias), torch.randn(B, T, D)
    w = layer.state_dict()
    both = x_BTD @ w["gate_up.weight"].T + w.get("gate_up.bias", 0)
    gate, up = both[..., :WIDTH], both[..., WIDTH:]
    expected = act(gate) * up @ w["down.weight"].T + w.get("down.bias", 0)
    torch.testing.assert_close(layer(x_BTD), expected)


@pytest.mark.parametrize(
    ("config", "theirs"),
    [
        (GatedMLPConfig(width=WIDTH), LlamaMLP(LlamaConfig(**THEIRS))),
        (GatedMLPConfig(kind="geglu_tanh", width=WIDTH), GemmaMLP(GemmaConfig(**THEIRS))),
    ],
)
def test_gate_and_up_stack_in_the_documented_order(
    config: GatedMLPConfig, theirs: nn.Module
) -> None:
    ours = build_feedforward(config, D)
    w = theirs.state_dict()
    gate_up = torch.cat((w["gate_proj.weight"], w["up_proj.weight"]))
    ours.load_state_dict({"gate_up.weight": gate_up, "down.weight": w["down_proj.weight"]})
    x_BTD = torch.randn(B, T, D)
    torch.testing.assert_close(ours(x_BTD), theirs(x_BTD))


def test_default_widths() -> None:
    assert MLPConfig().inner_width(256) == 1024
    assert GatedMLPConfig().inner_width(256) == 704  # 8/3 of 256 is 682.7; 704 is 11 * 64
    assert GatedMLPConfig().inner_width(24) == 64
    assert GatedMLPConfig(width=100).inner_width(256) == 100
    layer = build_feedforward(GatedMLPConfig(), 48)
    assert isinstance(layer, GatedMLP)
    assert layer.gate_up.weight.shape == (2 * 128, 48)


@pytest.mark.parametrize("kind", ["relu", "swiglu"])
def test_dropout_is_inside_and_only_in_training(kind: str) -> None:
    layer, x_BTD = build(kind, dropout=0.5, width=1000, bias=False), torch.randn(1, 1, D)
    first, second = layer(x_BTD), layer(x_BTD)
    assert not torch.allclose(first, second)
    assert (first != 0).all(), "dropout of the result would leave zeros"
    layer.eval()
    assert torch.equal(layer(x_BTD), layer(x_BTD))


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"feedforward.kind is 'swiglue'.*Did you mean 'swiglu'"):
        build("swiglue")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, r"feedforward.width is 0: it must be greater than or equal to 1"),
        ({"dropout": 1.0}, r"feedforward.dropout is 1.0: it must be less than 1"),
        ({"num_experts": 4}, r"feedforward.num_experts is not a setting"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("relu", **settings)
