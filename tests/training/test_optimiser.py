"""Optimisers: every weight has exactly one, and Muon's step is orthogonal."""

from __future__ import annotations

import pytest
import torch

from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.training.optimiser import OPTIMISERS, OptimiserConfig, build_optimisers, orthogonalised


def model():
    return build_model(
        ModelConfig(vocab_size=20, width=16, num_layers=1, attention={"num_heads": 2})
    )


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_every_weight_has_exactly_one_optimiser(kind: str) -> None:
    built = model()
    optimisers = build_optimisers(built, OptimiserConfig(kind=kind))
    held = [id(w) for o in optimisers for group in o.param_groups for w in group["params"]]
    assert sorted(held) == sorted(id(w) for w in built.parameters())


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_quadratic_bowl_is_descended(kind: str) -> None:
    built = model()
    target = [torch.randn_like(w) for w in built.parameters()]
    optimisers = build_optimisers(built, OptimiserConfig(kind=kind, lr=0.05))

    def distance() -> torch.Tensor:
        pairs = zip(built.parameters(), target, strict=True)
        return sum(((w - t) ** 2).sum() for w, t in pairs)

    before = distance().item()
    for _ in range(60):
        distance().backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    assert distance().item() < 0.3 * before


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (3, 8, 20)])
def test_orthogonalised_brings_every_singular_value_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalised(matrix))
    assert values.min() > 0.6 and values.max() < 1.3


def test_decay_leaves_norms_biases_and_tables_alone() -> None:
    built = model()
    (adamw,) = build_optimisers(built, OptimiserConfig(weight_decay=0.1))
    decayed = {id(w) for g in adamw.param_groups if g["weight_decay"] for w in g["params"]}
    names = {name for name, w in built.named_parameters() if id(w) in decayed}
    assert "decoder.blocks.0.attention.qkv.weight" in names
    assert not any(part in name for name in names for part in ("norm", "bias", "words", "position"))
