"""Optimisers: gradients -> new weights. AdamW for everything, or Muon for the hidden matrices and
AdamW for the rest.

    adamw   m, v = running means of g, g^2;  w -= lr (m / (sqrt(v) + eps) + decay w)
    Loshchilov 2019
    muon    m = running mean of g;  w -= lr orthogonalised(m) * 0.2 sqrt(max(rows, columns))
    Jordan 2024, Liu 2025

With Liu's factor a Muon step is as large as an AdamW step, so that one learning rate serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.choices import pick
from weft.core.config import Config


class OptimiserConfig(Config):
    """How weights follow their gradients."""

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(0.001, gt=0)
    """Peak learning rate; the schedule multiplies it."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """Pulls matrices towards zero; norms, biases and tables of words or positions are left
    alone."""
    clip: float | None = Field(1.0, gt=0)
    """Longest gradient (all weights as one vector); longer ones are shortened to it. None:
    never."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """muon: share of the running mean that is kept."""


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix is replaced by the nearest orthogonal one (five Newton-Schulz
    steps)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.one(weight, group)
        return None

    def one(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None, "a weight without a gradient has no step"
        if not state:
            state["mean"] = torch.zeros_like(weight)
        mean = state["mean"]
        mean.lerp_(gradient, 1 - group["momentum"])
        # Nesterov: look one step ahead along the mean
        direction = gradient.lerp(mean, group["momentum"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        size = 0.2 * max(weight.shape[-2:]) ** 0.5
        weight.add_(orthogonalised(direction), alpha=-group["lr"] * size)


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all its singular values brought near 1 (Newton-Schulz, coefficients of
    Jordan 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def is_hidden_matrix(name: str, weight: Tensor) -> bool:
    """Matrices between vectors, as opposed to tables with a row per word, segment or position."""
    tables = (".words.", ".segments.", ".position.")
    return weight.ndim >= 2 and name != "head.weight" and not any(part in name for part in tables)


def adamw(model: nn.Module, config: OptimiserConfig) -> list[torch.optim.Optimizer]:
    hidden, rest = split_weights(model)
    return [build_adamw([(hidden, config.weight_decay), (rest, 0.0)], config)]


def muon(model: nn.Module, config: OptimiserConfig) -> list[torch.optim.Optimizer]:
    hidden, rest = split_weights(model)
    matrices = Muon(hidden, config.lr, config.momentum, config.weight_decay)
    return [matrices, build_adamw([(rest, 0.0)], config)]


def split_weights(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """(hidden matrices, everything else)."""
    named = list(model.named_parameters())
    hidden: list[Tensor] = [weight for name, weight in named if is_hidden_matrix(name, weight)]
    rest: list[Tensor] = [weight for name, weight in named if not is_hidden_matrix(name, weight)]
    return hidden, rest


def build_adamw(
    groups: list[tuple[list[Tensor], float]], config: OptimiserConfig
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [{"params": params, "weight_decay": decay} for params, decay in groups if params],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


OPTIMISERS: dict[str, Callable[[nn.Module, OptimiserConfig], list[torch.optim.Optimizer]]] = {
    "adamw": adamw,
    "muon": muon,
}


def build_optimisers(model: nn.Module, config: OptimiserConfig) -> list[torch.optim.Optimizer]:
    """Between them they hold every weight of the model exactly once."""
    return pick(OPTIMISERS, config.kind, "optimiser")(model, config)
