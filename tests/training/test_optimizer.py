"""Optimizers hold every weight once, Muon's update is orthogonal; schedules rise and fall."""

from __future__ import annotations

import math

import pytest
import torch

from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.training.optimizer import (
    OPTIMIZERS,
    SCHEDULES,
    OptimizerConfig,
    ScheduleConfig,
    build_optimizers,
    lr_factor,
    orthogonalize,
)


def model():
    return build_model(
        ModelConfig(vocab_size=20, width=16, num_layers=1, attention={"num_heads": 2})
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_weight_has_exactly_one_optimizer(kind: str) -> None:
    built = model()
    optimizers = build_optimizers(built, OptimizerConfig(kind=kind))
    held = [id(w) for o in optimizers for group in o.param_groups for w in group["params"]]
    assert sorted(held) == sorted(id(w) for w in built.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_quadratic_bowl_is_descended(kind: str) -> None:
    built = model()
    target = [torch.randn_like(w) for w in built.parameters()]
    optimizers = build_optimizers(built, OptimizerConfig(kind=kind, lr=0.05))

    def distance() -> torch.Tensor:
        pairs = zip(built.parameters(), target, strict=True)
        return sum(((w - t) ** 2).sum() for w, t in pairs)

    before = distance().item()
    for _ in range(60):
        distance().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert distance().item() < 0.3 * before


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (3, 8, 20)])
def test_orthogonalize_brings_every_singular_value_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalize(matrix))
    assert values.min() > 0.6 and values.max() < 1.3


def test_decay_leaves_norms_biases_and_tables_alone() -> None:
    built = model()
    (adamw,) = build_optimizers(built, OptimizerConfig(weight_decay=0.1))
    decayed = {id(w) for g in adamw.param_groups if g["weight_decay"] for w in g["params"]}
    names = {name for name, w in built.named_parameters() if id(w) in decayed}
    assert "decoder.blocks.0.attention.qkv.weight" in names
    assert not any(part in name for name in names for part in ("norm", "bias", "words", "position"))


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_rises_to_one_and_stays_between_zero_and_one(kind: str) -> None:
    config = ScheduleConfig(kind=kind, warmup=10)
    values = [lr_factor(step, 100, config) for step in range(1, 101)]
    assert values[0] == 0.1 and values[9] == 1.0
    assert all(0 <= value <= 1 for value in values)
    assert all(a >= b for a, b in zip(values[9:], values[10:], strict=False))


def test_schedules_have_the_documented_values() -> None:
    assert lr_factor(400, 1000, ScheduleConfig(warmup=100)) == 0.5
    assert lr_factor(100, 100, ScheduleConfig(kind="cosine", warmup=0, floor=0.1)) == (
        pytest.approx(0.1)
    )
    half = lr_factor(50, 100, ScheduleConfig(kind="cosine", warmup=0))
    assert math.isclose(half, 0.5)
    wsd = ScheduleConfig(kind="wsd", warmup=0, decay=0.2)
    assert [lr_factor(step, 100, wsd) for step in (1, 80, 90, 100)] == [1.0, 1.0, 0.5, 0.0]
