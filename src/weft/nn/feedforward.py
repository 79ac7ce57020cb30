"""Feed-forward: x_BTD -> y_BTD, each token by itself through a wider layer.

    relu, gelu, gelu_tanh, silu            y = act(x W_up) W_down                    Vaswani 2017
    swiglu, geglu, geglu_tanh, reglu       y = (act(x W_gate) * x W_up) W_down       Shazeer 2020
    experts                                several of the gated ones, chosen a token (experts.py)

Differs from the article's MLP on request only: kind relu without bias is the article's. Dropout
here is between the two matrices; dropout of the result belongs to the residual path (block.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import Config
from weft.core.registry import pick
from weft.core.shapes import check_shapes
from weft.nn.dropout import Dropout
from weft.nn.experts import Experts, ExpertsConfig, gated_width
from weft.nn.linear import Linear


class PlainConfig(Config):
    """Settings of a layer without a gate."""

    width: int | None = Field(None, ge=1)
    """Width F inside. None: four times the model's."""
    bias: bool = True
    """Whether both matrices have an additive term."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Part of the inner numbers that training sets to zero."""

    def inner_width(self, width: int) -> int:
        return self.width or 4 * width


class GatedConfig(Config):
    """Settings of a layer with a gate."""

    width: int | None = Field(None, ge=1)
    """Width F inside. None: 8/3 of the model's, up to a multiple of 64; it then weighs what a plain
    layer does."""
    bias: bool = False
    """Whether all three matrices have an additive term."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Part of the inner numbers that training sets to zero."""

    def inner_width(self, width: int) -> int:
        return self.width or gated_width(width)


class ReluConfig(PlainConfig):
    """max(0, x W_up) W_down."""

    kind: Literal["relu"] = "relu"


class GeluConfig(PlainConfig):
    """gelu(x W_up) W_down (BERT)."""

    kind: Literal["gelu"] = "gelu"


class GeluTanhConfig(PlainConfig):
    """The same with gelu's tanh approximation (GPT-2)."""

    kind: Literal["gelu_tanh"] = "gelu_tanh"


class SiluConfig(PlainConfig):
    """silu(x W_up) W_down, also called swish (Marian)."""

    kind: Literal["silu"] = "silu"


class SwigluConfig(GatedConfig):
    """(silu(x W_gate) * x W_up) W_down (Llama)."""

    kind: Literal["swiglu"] = "swiglu"


class GegluConfig(GatedConfig):
    """(gelu(x W_gate) * x W_up) W_down."""

    kind: Literal["geglu"] = "geglu"


class GegluTanhConfig(GatedConfig):
    """The same with gelu's tanh approximation (T5 1.1, Gemma)."""

    kind: Literal["geglu_tanh"] = "geglu_tanh"


class RegluConfig(GatedConfig):
    """(relu(x W_gate) * x W_up) W_down."""

    kind: Literal["reglu"] = "reglu"


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "reglu": F.relu,
}

ACTIVATION_OF = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}
"""The name of each kind's activation in native/kernels.py."""

FeedForwardConfig = Annotated[
    ReluConfig
    | GeluConfig
    | GeluTanhConfig
    | SiluConfig
    | SwigluConfig
    | GegluConfig
    | GegluTanhConfig
    | RegluConfig
    | ExpertsConfig,
    Field(discriminator="kind"),
]


class Plain(nn.Module):
    """act(x W_up) W_down."""

    def __init__(
        self, config: ReluConfig | GeluConfig | GeluTanhConfig | SiluConfig, width: int
    ) -> None:
        super().__init__()
        self.width, inner = width, config.inner_width(width)
        self.up = Linear(width, inner, bias=config.bias)
        self.down = Linear(inner, width, bias=config.bias)
        self.kind = config.kind
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        return self.down(self.dropout(ACTIVATIONS[self.kind](self.up(x_BTD))))


class Gated(nn.Module):
    """(act(x W_gate) * x W_up) W_down.

    One product makes gate and up: `gate_up` has 2F rows, the F rows of W_gate first, then those of
    W_up, so a checkpoint with two matrices is stacked by torch.cat((gate, up)).
    """

    def __init__(
        self, config: SwigluConfig | GegluConfig | GegluTanhConfig | RegluConfig, width: int
    ) -> None:
        super().__init__()
        self.width, inner = width, config.inner_width(width)
        self.gate_up = Linear(width, 2 * inner, bias=config.bias)
        self.down = Linear(inner, width, bias=config.bias)
        self.kind = config.kind
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(self.dropout(ACTIVATIONS[self.kind](gate_BTF) * up_BTF))


FEEDFORWARDS: dict[str, type[Plain] | type[Gated] | type[Experts]] = {
    "relu": Plain,
    "gelu": Plain,
    "gelu_tanh": Plain,
    "silu": Plain,
    "swiglu": Gated,
    "geglu": Gated,
    "geglu_tanh": Gated,
    "reglu": Gated,
    "experts": Experts,
}


def build_feedforward(config: FeedForwardConfig, width: int) -> nn.Module:
    """The layer that `config.kind` names, between vectors of `width` numbers."""
    build: type[nn.Module] = pick(FEEDFORWARDS, config.kind, "feed-forward layer")
    return build(config, width)
