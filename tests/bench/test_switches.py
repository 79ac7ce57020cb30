"""One recipe with one switch changed at a time: each row is a real run, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.bench.switches import SWITCHES, cache_bytes, measure, with_switch
from weft.core.config import read_settings
from weft.core.errors import UsageError
from weft.models.config import ModelConfig
from weft.training.data.files import TrainingFiles
from weft.training.recipe import Recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "shakespeare.toml"
SMALL = {
    "model.width": 16,
    "model.num_layers": 1,
    "model.max_len": 16,
    "train.steps": 2,
    "train.batch_tokens": 64,
    "train.sample_len": 16,
}


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.from_dict(read_settings(RECIPE)).with_changes(SMALL)


def test_each_switch_is_trained_once_and_has_its_own_row(recipe: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be that is the question\n" * 20)
    files, trained = TrainingFiles("lm", (text,)), []
    switches = ["base", "model.attention.kind=mqa", "model.position.kind=alibi"]
    first = measure(recipe, files, tmp_path / "runs", switches, trained.append)
    assert trained == switches == [row["switch"] for row in first["rows"]]
    base, mqa, _ = first["rows"]
    assert mqa["cache_bytes"] * 4 == base["cache_bytes"] and mqa["parameters"] < base["parameters"]
    assert len({row["loss"] for row in first["rows"]}) == 3
    assert measure(recipe, files, tmp_path / "runs", switches)["rows"] == first["rows"]


def test_every_switch_changes_just_itself(recipe: Recipe) -> None:
    for switch in SWITCHES[1:]:
        name, _, value = switch.partition("=")
        assert with_switch(recipe, switch) == recipe.with_changes({name: value}) != recipe


def test_a_window_keeps_only_itself() -> None:
    heads = {"kind": "mha", "num_heads": 2}
    full = ModelConfig(kind="decoder", width=8, num_layers=2, max_len=64, attention=heads)
    window = full.with_changes({"attention.pattern.kind": "window", "attention.pattern.window": 16})
    assert cache_bytes(full) == 2 * 2 * 8 * 4 * 64 == 4 * cache_bytes(window)


def test_without_validation_there_is_nothing_to_compare(recipe: Recipe, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 20)
    blind = recipe.with_changes({"train.valid_share": 0.0})
    with pytest.raises(UsageError, match="no validation data"):
        measure(blind, TrainingFiles("lm", (text,)), tmp_path / "runs", ["base"])
