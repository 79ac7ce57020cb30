"""One recipe, trained repeatedly with one setting changed each time -> quality, time, cache.

    base                                     the recipe as it is
    model.position.kind=alibi                the same with this setting
    model.attention.kind=mla ...

Every run has the same data, seed, steps and batches and a folder of its own, so that an interrupted
benchmark continues with the next setting. The cache is the KV cache of one sequence of max_len
tokens; layers with a window keep only their window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from weft.bench.measure import machine
from weft.checkpoint.description import describe
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


@dataclass(frozen=True)
class SwitchRow:
    """The result of one setting."""

    switch: str
    loss: float
    """Validation loss, in nats per token."""
    seconds: float
    parameters: int
    cache_bytes: int
    """KV cache of one sequence of max_len tokens, float32."""


def measure(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    switches: Sequence[str] = SWITCHES,
    report: Callable[[str], None] = lambda switch: None,
) -> dict[str, Any]:
    """Train each setting in OUT/name and collect the rows. `report` is called before each run."""
    rows = []
    for switch in switches:
        report(switch)
        run = out / run_name(switch)
        rows.append(measure_switch(with_switch(recipe, switch), files, run, switch))
    return {"rows": [asdict(row) for row in rows], "machine": machine()}


def with_switch(recipe: Recipe, switch: str) -> Recipe:
    """The recipe with one setting changed."""
    if switch == "base":
        return recipe
    name, _, value = switch.partition("=")
    return recipe.with_changes({name: value})


def run_name(switch: str) -> str:
    return switch.removeprefix("model.").replace("=", "-")


def measure_switch(recipe: Recipe, files: TrainingFiles, out: Path, switch: str) -> SwitchRow:
    scores = run_training(recipe, files, out)
    if "valid" not in scores:
        raise UsageError(
            "there is no validation data to compare by. Use --valid, or set train.valid_share."
        )
    config = describe(out).config
    cost = cost_of(config)
    return SwitchRow(
        switch=switch,
        loss=scores["valid"]["loss"],
        seconds=scores["seconds"],
        parameters=cost.parameters,
        cache_bytes=cache_bytes(config),
    )


def cache_bytes(config: ModelConfig) -> int:
    """KV cache of a sequence of max_len tokens, with a source of the same length."""
    with torch.device("meta"):
        specs = build_model(config).kv_specs()
    length = config.max_len
    return sum(s.bytes_per_token() * min(length, s.window or length) for s in specs)
