"""One recipe, trained again and again with one switch changed each time -> quality, time, cache.

    base                                     the recipe as it is
    model.position.kind=alibi                the same with that one setting
    model.attention.kind=mla ...

Every run has the same data, seed, steps and batches and goes into a folder of its own, so that a
bench that was cut off goes on with the next switch. The cache is what one sequence of `context`
tokens keeps: layers with a window keep only their window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from weft.bench.measure import machine
from weft.checkpoint.formats import describe
from weft.core.errors import UsageError
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.models.cost import cost_of
from weft.training.data.files import TrainingFiles
from weft.training.recipe import Recipe
from weft.training.run import run_training

SWITCHES = (
    "base",
    "model.position.kind=none",
    "model.position.kind=sinusoidal",
    "model.position.kind=learned",
    "model.position.kind=shaw",
    "model.position.kind=bucketed",
    "model.position.kind=alibi",
    "model.attention.kind=gqa",
    "model.attention.kind=mqa",
    "model.attention.kind=mla",
    "model.norm.kind=layernorm",
    "model.norm.placement=after",
    "model.attention.pattern.kind=window",
)

Watch = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What one switch gave."""

    switch: str
    loss: float
    """Validation loss, in nats a token."""
    seconds: float
    parameters: int
    cache_bytes: int
    """Of one sequence of the model's full length, float32."""


def measure(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    switches: Sequence[str] = SWITCHES,
    watch: Watch = lambda switch: None,
) -> dict[str, Any]:
    """Train each switch in OUT/name and collect the rows."""
    rows = []
    for switch in switches:
        watch(switch)
        rows.append(one(changed(recipe, switch), files, out / name_of(switch), switch))
    return {"rows": [asdict(row) for row in rows], "machine": machine()}


def changed(recipe: Recipe, switch: str) -> Recipe:
    """The recipe with the one setting."""
    if switch == "base":
        return recipe
    name, _, value = switch.partition("=")
    return recipe.with_changes({name: value})


def name_of(switch: str) -> str:
    return switch.removeprefix("model.").replace("=", "-")


def one(recipe: Recipe, files: TrainingFiles, out: Path, switch: str) -> Row:
    scores = run_training(recipe, files, out)
    if "valid" not in scores:
        raise UsageError(
            "there is no validation data to compare by. Give --valid, or set train.valid_share."
        )
    config = describe(out).config
    cost = cost_of(config)
    return Row(
        switch=switch,
        loss=scores["valid"]["loss"],
        seconds=scores["seconds"],
        parameters=cost.parameters,
        cache_bytes=cache_bytes(config),
    )


def cache_bytes(config: ModelConfig) -> int:
    """What a sequence of the model's full length keeps; the source is as long."""
    with torch.device("meta"):
        specs = build_model(config).kv_specs()
    length = config.max_len
    return sum(s.bytes_per_token() * min(length, s.window or length) for s in specs)
