"""Optimizers and learning-rate schedules: gradients, step -> new weights.

    adamw   m, v = running means of g, g^2;  w -= lr (m / (sqrt(v) + eps) + decay w)
            Loshchilov 2019
    muon    m = running mean of g;  w -= lr orthogonalize(m) * 0.2 sqrt(max(rows, columns))
            Jordan 2024; the factor, which makes one learning rate fit both: Liu 2025

Muon updates the hidden matrices and AdamW the rest: embeddings, norms, biases.

    inverse_sqrt  linear warmup, then 1 / sqrt(step)                         Vaswani 2017
    cosine        linear warmup, then half a cosine down to `floor`          Loshchilov 2017
    wsd           warmup, stable, linear decay over the last `decay` steps   Hu 2024
    constant      linear warmup, then constant

A schedule is a pure function of the step: a resumed run needs no state of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import Config


class OptimizerConfig(Config):
    """How weights are updated from their gradients."""

    kind: Literal["adamw", "muon"] = "adamw"
    """adamw: AdamW for all weights (Loshchilov 2019). muon: Muon for the hidden matrices (Jordan
    2024), AdamW for the rest."""
    lr: float = Field(0.001, gt=0)
    """Peak learning rate; the schedule multiplies it."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW: decay of the running means of gradients and of squared gradients."""
    eps: float = Field(1e-9, gt=0)
    """AdamW: added to the denominator of the update, against division by zero."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay of the hidden matrices; norms, biases and embeddings have none."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient of all weights. None: no clipping."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """muon: decay of the running mean of gradients."""


class ScheduleConfig(Config):
    """The learning rate from the first step to the last."""

    kind: Literal["inverse_sqrt", "cosine", "wsd", "constant"] = "inverse_sqrt"
    """After the warmup: inverse_sqrt falls with the root of the step, cosine and wsd fall to
    `floor` at the last step, constant stays."""
    warmup: int = Field(400, ge=0)
    """Steps in which the rate rises linearly from 0 to its peak; too few of them let a run diverge
    with a high rate."""
    decay: float = Field(0.2, gt=0, le=1)
    """wsd: fraction of all steps in which the rate decays at the end."""
    floor: float = Field(0.0, ge=0, lt=1)
    """cosine, wsd: fraction of the peak at the last step."""


class Muon(torch.optim.Optimizer):
    """Momentum with an orthogonalized update (five Newton-Schulz iterations)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, group)
        return None

    def update(self, weight: Tensor, group: dict[str, Any]) -> None:
        """Update one matrix, or a stack of matrices."""
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None, "a weight without a gradient has no update"
        if not state:
            state["mean"] = torch.zeros_like(weight)
        mean = state["mean"]
        mean.lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(mean, group["momentum"])  # Nesterov momentum
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        size = 0.2 * max(weight.shape[-2:]) ** 0.5
        weight.add_(orthogonalize(direction), alpha=-group["lr"] * size)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all singular values near 1 (Newton-Schulz, coefficients of Jordan 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight maps vectors to vectors, unlike embeddings of words, segments, positions."""
    embeddings = (".words.", ".segments.", ".position.")
    is_embedding = name == "head.weight" or any(part in name for part in embeddings)
    return weight.ndim >= 2 and not is_embedding


def adamw(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    hidden, rest = split_weights(model)
    return [build_adamw([(hidden, config.weight_decay), (rest, 0.0)], config)]


def muon(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    hidden, rest = split_weights(model)
    matrices = Muon(hidden, config.lr, config.momentum, config.weight_decay)
    return [matrices, build_adamw([(rest, 0.0)], config)]


def split_weights(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """(hidden matrices, all other weights), each in registration order: checkpoints store
    optimizer state by these indices."""
    named = list(model.named_parameters())
    hidden: list[Tensor] = [weight for name, weight in named if is_hidden_matrix(name, weight)]
    rest: list[Tensor] = [weight for name, weight in named if not is_hidden_matrix(name, weight)]
    return hidden, rest


def build_adamw(
    groups: list[tuple[list[Tensor], float]], config: OptimizerConfig
) -> torch.optim.Optimizer:
    """AdamW over groups of (weights, weight decay)."""
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for params, decay in groups if params],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, OptimizerConfig], list[torch.optim.Optimizer]]] = {
    "adamw": adamw,
    "muon": muon,
}


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of a model; together they hold every weight exactly once."""
    return OPTIMIZERS[config.kind](model, config)


def inverse_sqrt(step: int, num_steps: int, config: ScheduleConfig) -> float:
    return math.sqrt(max(1, config.warmup) / step)


def cosine(step: int, num_steps: int, config: ScheduleConfig) -> float:
    progress = min(1.0, (step - config.warmup) / max(1, num_steps - config.warmup))
    return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * progress))


def wsd(step: int, num_steps: int, config: ScheduleConfig) -> float:
    remaining = (num_steps - step) / max(1.0, config.decay * num_steps)
    return config.floor + (1 - config.floor) * min(1.0, max(0.0, remaining))


def constant(step: int, num_steps: int, config: ScheduleConfig) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, int, ScheduleConfig], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "wsd": wsd,
    "constant": constant,
}


def lr_factor(step: int, num_steps: int, config: ScheduleConfig) -> float:
    """Factor on the peak learning rate at a step counted from 1."""
    if step <= config.warmup:
        return step / config.warmup
    return SCHEDULES[config.kind](step, num_steps, config)
