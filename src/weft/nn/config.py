"""Settings of the layers: norm, feed-forward, mixture of experts, embedding, LM head.

Separate from the layers so that settings are read and validated without torch, whose import takes
longer than `weft info` may (tests/cli/test_info_imports.py). The settings of attention and of
position encodings are in their packages, in the file of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from weft.core.config import Config
from weft.core.errors import Problem


class NormConfig(Config):
    """Which norm, and where it is placed."""

    kind: Literal["layernorm", "rmsnorm"] = "layernorm"
    """layernorm subtracts the mean and divides by the standard deviation; rmsnorm divides by the
    root mean square only."""
    eps: float = Field(1e-5, gt=0)
    """Added to the variance, so that a vector of equal numbers is not divided by zero."""
    bias: bool | None = None
    """Whether a layernorm has a bias. None: yes. An rmsnorm never has one."""
    placement: Literal["before", "after", "both"] = "before"
    """before: x + f(norm(x)). after: norm(x + f(x)), as Vaswani 2017. both: x + norm(f(norm(x))),
    as Gemma 2."""
    unit_offset: bool = False
    """True: the stored weight is the real one minus 1 (Gemma)."""

    @property
    def has_bias(self) -> bool:
        return self.kind == "layernorm" and self.bias is not False

    def for_heads(self, eps: float | None = None) -> NormConfig:
        """An rmsnorm with the same settings, for the heads or latent rows inside attention."""
        return NormConfig(kind="rmsnorm", eps=eps or self.eps, unit_offset=self.unit_offset)

    def cross_checks(self) -> Iterable[Problem]:
        if self.kind == "rmsnorm" and self.bias:
            yield Problem(
                "bias is True but kind is rmsnorm: only a layernorm has a bias. "
                "Leave bias out, or set kind = layernorm.",
                ("bias", "kind"),
            )


class MLPConfig(Config):
    """Settings of a layer without a gate."""

    width: int | None = Field(None, ge=1)
    """Inner width F (intermediate size). None: four times the model's width."""
    bias: bool = True
    """Whether both linear layers have a bias."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability of the activations between the two linear layers, in training."""
    kind: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    """relu: Vaswani 2017. gelu: BERT. gelu_tanh: its tanh approximation (GPT-2). silu: also called
    swish (Marian)."""

    def inner_width(self, width: int) -> int:
        return self.width or 4 * width


class GatedMLPConfig(Config):
    """Settings of a layer with a gate."""

    width: int | None = Field(None, ge=1)
    """Inner width F (intermediate size). None: 8/3 of the model's width, rounded up to a multiple
    of 64, which gives as many weights as a layer without a gate."""
    bias: bool = False
    """Whether all three linear layers have a bias."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout probability of the activations between the two linear layers, in training."""
    kind: Literal["swiglu", "geglu", "geglu_tanh", "reglu"] = "swiglu"
    """Activation of the gate. swiglu: SiLU (Llama). geglu: GELU. geglu_tanh: its tanh approximation
    (T5 1.1, Gemma). reglu: ReLU."""

    def inner_width(self, width: int) -> int:
        return self.width or gated_width(width)


def gated_width(width: int) -> int:
    """8/3 of the width, up to a multiple of 64: as many weights in three matrices as 4x in two."""
    return round_up(8 * width / 3, 64)


def round_up(number: float, step: int) -> int:
    return step * math.ceil(number / step)


class MixtureOfExpertsConfig(Config):
    """Settings of the experts and of their router."""

    kind: Literal["experts"] = "experts"
    """A router selects some of several feed-forward layers for each token."""
    num_experts: int = Field(8, ge=1)
    """Feed-forward layers from which the router selects experts_per_token for each token."""
    experts_per_token: int = Field(2, ge=1)
    """Routed experts selected for each token (top-k)."""
    shared_experts: int = Field(1, ge=0)
    """Experts that every token uses, besides the selected ones. 0: none."""
    width: int | None = Field(None, ge=1)
    """Inner width F of one expert. None: that of a swiglu layer, divided by the number of experts
    of a token."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: scores of all experts sum to 1 (V2). sigmoid: independent scores (V3)."""
    correction: bool = False
    """Whether a bias per expert is added to its score for the selection, but not to its weight
    (V3)."""
    num_groups: int = Field(1, ge=1)
    """Experts are divided into this many groups of consecutive experts."""
    groups_per_token: int = Field(1, ge=1)
    """A token's experts are selected from this many groups."""
    group_score: Literal["max", "top2"] = "max"
    """Score of a group. max: that of its best expert (V2). top2: the sum of its two best (V3)."""
    normalise: bool = True
    """Whether the weights of the selected experts are normalized to sum to 1, before `scale`."""
    scale: float = Field(1.0, gt=0)
    """Factor on the weights of the selected experts (DeepSeek: routed_scaling_factor)."""

    @property
    def group_size(self) -> int:
        return self.num_experts // self.num_groups

    def inner_width(self, width: int) -> int:
        working = self.experts_per_token + self.shared_experts
        return self.width or round_up(gated_width(width) / working, 64)

    def cross_checks(self) -> Iterable[Problem]:
        if self.num_experts % self.num_groups:
            yield Problem(
                f"num_experts is {self.num_experts} but num_groups is {self.num_groups}: groups "
                "have equal size. Use a number of groups that divides the experts.",
                ("num_experts", "num_groups"),
            )
        elif self.groups_per_token > self.num_groups:
            yield Problem(
                f"groups_per_token is {self.groups_per_token} but num_groups is {self.num_groups}: "
                f"a token cannot use more groups than there are. Use at most {self.num_groups}.",
                ("groups_per_token", "num_groups"),
            )
        else:
            yield from self.check_choice()

    def check_choice(self) -> Iterable[Problem]:
        """Whether the groups that a token may use hold enough experts."""
        available = self.groups_per_token * self.group_size
        if self.experts_per_token > available:
            yield Problem(
                f"experts_per_token is {self.experts_per_token} but a token can choose among "
                f"{available} (num_experts {self.num_experts}, {self.groups_per_token} of "
                f"{self.num_groups} groups). Use at most {available}, or more experts or groups.",
                ("experts_per_token", "num_experts", "groups_per_token", "num_groups"),
            )
        if self.group_score == "top2" and self.num_groups > 1 and self.group_size < 2:
            yield Problem(
                f"group_score is top2 but a group has {self.group_size} expert: it needs 2. "
                "Use fewer groups, or group_score = max.",
                ("group_score", "num_experts", "num_groups"),
            )


FeedForwardConfig = Annotated[
    MLPConfig | GatedMLPConfig | MixtureOfExpertsConfig, Field(discriminator="kind")
]


class EmbeddingConfig(Config):
    """Settings of the embedding, and which word tables are tied."""

    tied: Literal["all", "output", "input", "none"] = "all"
    """all: source, target and output share one table; output: target and output share one; input:
    source and target (T5 1.1); none: three tables."""
    scale: bool = False
    """Multiply by sqrt(width), as Vaswani 2017, so that positions do not outweigh words."""
    norm: bool = False
    """Normalize the sum of word and position (BERT, BLOOM)."""
    segments: int = Field(0, ge=0)
    """Number of segment types, each with a vector (BERT: 2). 0: none."""

    @property
    def ties_output(self) -> bool:
        """Whether the output's table is the target's."""
        return self.tied in ("all", "output")

    @property
    def ties_source(self) -> bool:
        """Whether the source's table is the target's."""
        return self.tied in ("all", "input")


class LMHeadConfig(Config):
    """Settings of the LM head."""

    bias: bool = False
    """Whether the logits have a bias per token (Marian, BERT)."""
    scale: float = Field(1.0, gt=0)
    """Factor on the vectors before the product (T5 with a tied table: width ** -0.5)."""
    softcap: float | None = Field(None, gt=0)
    """30.0: logits are limited to -30..30 by 30 tanh(x / 30) (Gemma 2)."""
    transform: bool = False
    """A dense layer, GELU and a norm before the product (BERT's masked language modeling head)."""
