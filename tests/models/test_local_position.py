"""Layers that see a window only may have rotary positions of their own (Gemma 3)."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contiguous_cache import ContiguousCache
from tests.engine.asking import generate
from weft.core.errors import ConfigError
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel, build_model
from weft.models.config import ModelConfig
from weft.nn.attention.config import warn_once

SIZES = {"vocab_size": 29, "width": 24, "num_layers": 4, "max_len": 64, "dropout": 0.0}
NEAR, FAR = {"kind": "rotary", "base": 50.0}, {"kind": "rotary", "base": 1e6}
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def build(window: dict[str, Any] | None = None, **parts: Any) -> AnyModel:
    """A decoder of four layers of which the second and the fourth see all keys."""
    pattern = window or {"kind": "window", "window": 3, "full_every": 2}
    attention = {"num_heads": 4, "pattern": pattern, **parts.pop("attention", {})}
    config = ModelConfig(kind="decoder", attention=attention, **{**SIZES, **parts})
    return build_model(config, seed=1).eval()


def ids(length: int, rows: int = 2) -> Tensor:
    return torch.randint(0, 29, (rows, length), generator=torch.Generator().manual_seed(length))


def logits(model: AnyModel, length: int = 20) -> Tensor:
    with torch.no_grad():
        return model(ForwardBatch(ids(length)))


def test_without_one_all_layers_share_the_position() -> None:
    alike = logits(build(position=FAR, local_position=FAR))
    torch.testing.assert_close(logits(build(position=FAR)), alike, atol=0, rtol=0)


def test_each_position_reaches_its_own_layers_only() -> None:
    mixed = logits(build(position=FAR, local_position=NEAR))
    for other in (
        build(position=FAR, local_position=FAR),
        build(position=NEAR, local_position=NEAR),
        build(position=NEAR, local_position=FAR),
    ):
        assert not torch.allclose(logits(other), mixed, atol=1e-3)


@pytest.mark.parametrize("has_window", [True, False], ids=["windows only", "no window"])
def test_a_position_without_layers_changes_nothing(has_window: bool) -> None:
    pattern = {"kind": "window", "window": 3, "full_every": None if has_window else 1}
    mixed = logits(build(pattern, position=FAR, local_position=NEAR))
    used = NEAR if has_window else FAR
    torch.testing.assert_close(logits(build(pattern, position=used)), mixed, atol=0, rtol=0)


def test_layers_that_see_all_keys_may_have_no_position() -> None:
    """Word order is then known through the windows alone (Command R7B)."""
    model = build(position={"kind": "none"}, local_position=NEAR)
    swapped = ids(12)
    swapped[:, :2] = swapped[:, :2].flip(1)
    with torch.no_grad():
        first, second = model(ForwardBatch(ids(12))), model(ForwardBatch(swapped))
    assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-5)


@pytest.mark.parametrize("kind", ["mha", "gqa", "mla"])
@pytest.mark.parametrize("kernel", ["auto", "reference", "flash", "sparse"])
def test_cached_equals_uncached_step_by_step(kind: str, kernel: str) -> None:
    model = build(attention={"kind": kind, "kernel": kernel}, position=FAR, local_position=NEAR)
    ids_BT, parts = ids(17), []
    cache = ContiguousCache(model.kv_specs(), 2, 17)
    with torch.no_grad():
        for chunk in ids_BT.split([5, 1, 1, 6, 1, 3], dim=1):
            parts.append(model(ForwardBatch(chunk, cache=cache)))
            cache.advance(chunk.shape[1])
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ForwardBatch(ids_BT)), **CLOSE)


def test_greedy_is_the_argmax_of_an_uncached_pass_at_every_step() -> None:
    model, prompts = build(position=FAR, local_position=NEAR), [[1, 2, 3], [4], [5, 6]]
    outputs = generate(model, prompts, max_tokens=9)
    for prompt, output in zip(prompts, outputs, strict=True):
        for step, token in enumerate(output):
            with torch.no_grad():
                whole = model(ForwardBatch(torch.tensor([prompt + output[:step]])))
            assert int(whole[0, -1].argmax()) == token


def test_settings_survive_a_round_trip_through_plain_values() -> None:
    config = build(position=FAR, local_position=NEAR).config
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert config.with_changes({"local_position.base": 70.0}).local_position.base == 70.0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"width": 36, "attention": {"num_heads": 4}, "local_position": NEAR},
            "local_position.kind is rotary but it would rotate 9 numbers of each head (the head "
            "size is 9, local_position.fraction 1): it rotates pairs, so that must be even and at "
            "least 2",
        ),
        ({"local_position": {"kind": "learned"}}, "local_position.kind is 'learned': allowed are"),
        (
            {"local_position": {"bases": 3.0}},
            "local_position.bases is not a setting. Did you mean 'base'?",
        ),
    ],
)
def test_a_mistake_is_answered(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ModelConfig(**values)


def test_one_without_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        ModelConfig(local_position=NEAR)
        ModelConfig(local_position=NEAR)
    assert [r.message for r in caplog.records] == [
        "local_position has no effect: attention.pattern.kind=full lets all layers see all"
    ]
