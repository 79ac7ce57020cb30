"""Mixture of experts with shared experts: x_BTD -> y_BTD (Shazeer 2017; DeepSeekMoE, Dai 2024).

    y = shared(x) + sum over the selected experts e of weight_e * expert_e(x)

A router scores every expert and selects the top few for each token; an expert is a SwiGLU layer.
Tokens are sorted by expert, so each expert is computed once for all of its tokens, and an expert
without tokens costs nothing. Differs from the papers: there is no auxiliary load-balancing loss and
no update rule for the correction. V2 and V3 in the settings are DeepSeek's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.shapes import check_shapes
from weft.native.kernels import activation
from weft.nn.config import MixtureOfExpertsConfig
from weft.nn.linear import Linear


class Router(nn.Module):
    """score = softmax or sigmoid(x W); selects the top experts of the top groups.

    `weight_ED` has one row per expert. `correction_E`, if configured, is a buffer: it is saved with
    the model and has no gradient.
    """

    correction_E: Tensor | None

    def __init__(self, config: MixtureOfExpertsConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.weight_ED = nn.Parameter(torch.empty(config.num_experts, width))
        uniform_(self.weight_ED)
        correction_E = torch.zeros(config.num_experts) if config.correction else None
        self.register_buffer("correction_E", correction_E)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """(expert ids, weights) of each token, both [N, experts_per_token], best expert first."""
        config, logits_NE = self.config, self.logits(x_ND)
        is_sigmoid = config.scoring == "sigmoid"
        score_NE = activation("sigmoid", logits_NE) if is_sigmoid else logits_NE.softmax(-1)
        rank_NE = score_NE.detach()
        if self.correction_E is not None:
            rank_NE = rank_NE + self.correction_E
        expert_ids = self.within_groups(rank_NE).topk(config.experts_per_token, dim=-1).indices
        weights = score_NE.gather(-1, expert_ids)
        if config.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return expert_ids, weights * config.scale

    def logits(self, x_ND: Tensor) -> Tensor:
        return router_logits(x_ND, self.weight_ED)

    def within_groups(self, rank_NE: Tensor) -> Tensor:
        """The same ranks, -inf for the experts outside the top groups."""
        config = self.config
        if config.groups_per_token == config.num_groups:
            return rank_NE
        in_groups = rank_NE.unflatten(-1, (config.num_groups, config.group_size))
        best = in_groups.topk(2 if config.group_score == "top2" else 1, dim=-1).values.sum(-1)
        group_ids = best.topk(config.groups_per_token, dim=-1).indices
        is_out = torch.ones_like(best, dtype=torch.bool).scatter(-1, group_ids, False)
        return in_groups.masked_fill(is_out[..., None], -math.inf).flatten(-2)


class SharedExperts(nn.Module):
    """One SwiGLU layer as wide as all shared experts together, which equals their sum."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = Linear(width, 2 * inner, bias=False)
        self.down = Linear(inner, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_NF, up_NF = self.gate_up(x_BTD).flatten(0, -2).chunk(2, dim=-1)
        return self.down(F.silu(gate_NF) * up_NF).view_as(x_BTD)


class MixtureOfExperts(nn.Module):
    """shared(x) + sum of weight_e * expert_e(x) over the selected experts.

    The matrices of all experts are stacked: `gate_up_EFD` (2F rows per expert: gate, then up) and
    `down_EDF`.
    """

    def __init__(self, config: MixtureOfExpertsConfig, width: int) -> None:
        super().__init__()
        self.config, self.width, inner = config, width, config.inner_width(width)
        self.router = Router(config, width)
        self.gate_up_EFD = nn.Parameter(torch.empty(config.num_experts, 2 * inner, width))
        self.down_EDF = nn.Parameter(torch.empty(config.num_experts, width, inner))
        uniform_(self.gate_up_EFD)
        uniform_(self.down_EDF)
        shared = config.shared_experts
        self.shared = SharedExperts(width, shared * inner) if shared else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        check_shapes(x_BTD=x_BTD, D=self.width)
        x_ND = x_BTD.flatten(0, -2)
        expert_ids, weights = self.router(x_ND)
        y_ND = (self.routed(x_ND, expert_ids) * weights[..., None]).sum(1).to(x_BTD.dtype)
        y_BTD = y_ND.view_as(x_BTD)
        return y_BTD if self.shared is None else y_BTD + self.shared(x_BTD)

    def routed(self, x_ND: Tensor, expert_ids: Tensor) -> Tensor:
        """The outputs of the selected experts of each token: [N, experts_per_token, D]."""
        expert = expert_ids.flatten()
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.config.num_experts).tolist()
        parts = x_ND.index_select(0, order // expert_ids.shape[1]).split(counts)
        outputs = torch.cat(self.run_experts(parts))
        return outputs.index_select(0, order.argsort()).unflatten(0, expert_ids.shape)

    def run_experts(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The output of each expert for its tokens; experts without tokens are left out."""
        return swiglu_experts(parts, self.gate_up_EFD, self.down_EDF)


def router_logits(x_ND: Tensor, weight_ED: Tensor) -> Tensor:
    """In float32 at least: in bfloat16 near scores are ties, and a tie is a wrong expert."""
    dtype = torch.promote_types(x_ND.dtype, torch.float32)
    return F.linear(x_ND.to(dtype), weight_ED.to(dtype))


def swiglu_experts(parts: Sequence[Tensor], gate_up_EFD: Tensor, down_EDF: Tensor) -> list[Tensor]:
    """The SwiGLU layer of each expert for its tokens; experts without tokens are left out."""
    # unbind, not [e]: its gradient is one stack, where each [e] would fill a whole E x F x D
    weights = zip(parts, gate_up_EFD.unbind(), down_EDF.unbind(), strict=True)
    return [swiglu(x, gate_up, down) for x, gate_up, down in weights if x.shape[0]]


def swiglu(x: Tensor, gate_up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """(silu(x W_gate) * x W_up) W_down."""
    gate, up = F.linear(x, gate_up_FD).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down_DF)


def uniform_(weight: Tensor) -> None:
    """The initialization of nn.Linear: uniform within 1 / sqrt(inputs) of zero."""
    bound = weight.shape[-1] ** -0.5
    nn.init.uniform_(weight, -bound, bound)
