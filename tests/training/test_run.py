"""`weft.train`: the same run from Python, with the files named in the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from weft.core.errors import UsageError

from .material import recipe, write_pairs


def test_a_recipe_file_names_its_data_relative_to_itself(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(
        """
        [data]
        pairs = ["words.src", "words.tgt"]
        out = "model"
        [model]
        width = 16
        num_layers = 1
        max_len = 32
        attention = { num_heads = 2 }
        [tokenizer]
        vocab_size = 300
        [train]
        steps = 3
        batch_tokens = 200
        """
    )
    scores = weft.train(path)
    assert scores["steps"] == 3
    model = weft.load(tmp_path / "model")
    assert len(model.translate(["abc", "", "fed"])) == 3
    assert model.translate([""]) == [""]


def test_a_dict_is_a_recipe_too(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path)
    values = recipe(steps=2).to_dict()
    values["data"] = {"text": [str(source), str(target)], "objective": "lm"}
    assert weft.train(values, out=tmp_path / "lm")["steps"] == 2


def test_a_missing_folder_or_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data.out is empty"):
        weft.train({})
    with pytest.raises(UsageError, match="none of pairs, tsv and text given"):
        weft.train({}, out=tmp_path / "x")


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    source, target = write_pairs(tmp_path)
    values = recipe(steps=3, tensorboard=True).to_dict()
    values["data"] = {"pairs": [str(source), str(target)]}
    weft.train(values, out=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
