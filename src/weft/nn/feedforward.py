"""Feed-forward layers: x_BTD -> y_BTD, each token by itself through a wider layer.

    relu, gelu, gelu_tanh, silu            y = act(x W_up) W_down                    Vaswani 2017
    swiglu, geglu, geglu_tanh, reglu       y = (act(x W_gate) * x W_up) W_down       Shazeer 2020
    experts                                a few gated layers per token (mixture_of_experts.py)

Dropout here is between the two matrices; dropout of the result belongs to the residual path
(block.py).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from weft.core.registry import pick
from weft.core.shapes import check_shapes
from weft.native.kernels import ACTIVATIONS
from weft.nn.config import FeedForwardConfig, GatedMLPConfig, MLPConfig
from weft.nn.dropout import Dropout
from weft.nn.linear import Linear
from weft.nn.mixture_of_experts import MixtureOfExperts


class FeedForwardKind(NamedTuple):
    """What distinguishes the kinds."""

    activation: str
    """Its name in native/kernels.py."""
    is_gated: bool


KINDS: dict[str, FeedForwardKind] = {
    "relu": FeedForwardKind("relu", is_gated=False),
    "gelu": FeedForwardKind("gelu", is_gated=False),
    "gelu_tanh": FeedForwardKind("gelu_tanh", is_gated=False),
    "silu": FeedForwardKind("silu", is_gated=False),
    "swiglu": FeedForwardKind("silu", is_gated=True),
    "geglu": FeedForwardKind("gelu", is_gated=True),
    "geglu_tanh": FeedForwardKind("gelu_tanh", is_gated=True),
    "reglu": FeedForwardKind("relu", is_gated=True),
}


class MLP(nn.Module):
    """act(x W_up) W_down."""

    def __init__(self, config: MLPConfig, width: int) -> None:
        super().__init__()
        self.width, inner = width, config.inner_width(width)
        self.up = Linear(width, inner, bias=config.bias)
        self.down = Linear(inner, width, bias=config.bias)
        self.activation = KINDS[config.kind].activation
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        return self.down(self.dropout(ACTIVATIONS[self.activation](self.up(x_BTD))))


class GatedMLP(nn.Module):
    """(act(x W_gate) * x W_up) W_down.

    One product computes gate and up: `gate_up` has 2F rows, the F rows of W_gate first, then those
    of W_up, so a checkpoint with two matrices is stacked by torch.cat((gate, up)).
    """

    def __init__(self, config: GatedMLPConfig, width: int) -> None:
        super().__init__()
        self.width, inner = width, config.inner_width(width)
        self.gate_up = Linear(width, 2 * inner, bias=config.bias)
        self.down = Linear(inner, width, bias=config.bias)
        self.activation = KINDS[config.kind].activation
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(self.dropout(ACTIVATIONS[self.activation](gate_BTF) * up_BTF))


FEEDFORWARDS: dict[str, type[MLP] | type[GatedMLP] | type[MixtureOfExperts]] = {
    **{name: GatedMLP if kind.is_gated else MLP for name, kind in KINDS.items()},
    "experts": MixtureOfExperts,
}


def build_feedforward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The layer that `config.kind` names, for vectors of `width` numbers."""
    build: type[nn.Module] = pick(FEEDFORWARDS, config.kind, "feed-forward layer")
    return build(config, width)
