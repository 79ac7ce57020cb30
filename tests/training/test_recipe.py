"""Recipes: settings that contradict each other are refused, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.core.config import read_settings
from weft.core.errors import ConfigError
from weft.training.recipe import Recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_valid(path: Path) -> None:
    assert Recipe.from_dict(read_settings(path), str(path)).train.steps > 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"train": {"bpe_dropout": 0.1}, "tokenizer": {"kind": "character"}},
            "train.bpe_dropout is 0.1 but tokenizer.kind is character",
        ),
        (
            {"train": {"sample_len": 99}, "model": {"max_len": 50}},
            "train.sample_len is 99 but model.max_len is 50",
        ),
        (
            {"train": {"shard": True, "optimiser": {"kind": "muon"}}},
            "Muon needs unsharded matrices",
        ),
        ({"train": {"rdrop_from": 5}}, "train.rdrop_from is 5 but train.rdrop is 0"),
        (
            {"train": {"rdrop": 3, "rdrop_from": 50, "steps": 50}},
            "train.rdrop_from is 50 but train.steps is 50: R-Drop would never start",
        ),
        ({"train": {"step": 5}}, "train.step is not a setting. Did you mean 'steps'?"),
        ({"training": {}}, "training is not a setting. Did you mean 'train'?"),
        ({"train": {"schedule": {"kind": "cosin"}}}, "Did you mean 'cosine'?"),
    ],
)
def test_contradictory_settings_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.from_dict(values)
    assert sentence in str(caught.value)
