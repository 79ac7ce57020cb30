"""Model folders and interrupted runs written before the redesign load and continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.data.before_redesign.write import RUNS, STOP

FOLDER = Path(__file__).parents[1] / "data" / "before_redesign"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
CLOSE = 1e-4
"""Relative tolerance: processors differ in the last bits of float32, and differences accumulate."""


def test_an_encoder_decoder_gives_the_recorded_translations():
    model = weft.load(FOLDER / "translator")
    assert model.translate(EXPECTED["sources"]) == EXPECTED["greedy"]
    assert model.translate(EXPECTED["sources"], beam=4) == EXPECTED["beam"]


def test_a_decoder_gives_the_recorded_completions():
    model = weft.load(FOLDER / "decoder")
    for prompt, text in zip(EXPECTED["prompts"], EXPECTED["generated"], strict=True):
        assert model.generate(prompt, max_tokens=8, temperature=0) == text


@pytest.fixture(params=list(RUNS))
def run(request, tmp_path) -> Path:
    """A copy of an interrupted run with its training files."""
    folder = shutil.copytree(FOLDER, tmp_path / "data") / request.param
    assert not (folder / "model.safetensors").exists()
    return folder


def test_an_interrupted_run_continues_to_the_recorded_weights(run):
    before, steps = read_metrics(run / "metrics.jsonl"), []
    continue_run(run, lambda progress: steps.append(progress.step))
    assert steps[0] == STOP + 1, "the run started from the beginning"
    finished = run / "finished"
    after = read_metrics(run / "metrics.jsonl")
    assert after[: len(before)] == before
    assert_close(after, read_metrics(finished / "metrics.jsonl"))
    assert_close(read_scores(run), read_scores(finished))
    expected = load_file(finished / "model.safetensors")
    weights = load_file(run / "model.safetensors")
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=CLOSE, atol=CLOSE, msg=name)


def test_an_interrupted_run_with_other_settings_is_rejected(run):
    recipe = json.loads(json.dumps(RUNS[run.name]))
    recipe["train"]["batch_tokens"] = 65
    with pytest.raises(ValueError, match=r"train.batch_tokens was \d+ and is now 65"):
        continue_run(run, lambda progress: None, recipe)


def test_an_interrupted_run_resumes_with_more_steps_and_delivers_its_best_checkpoint(run):
    recipe = json.loads(json.dumps(RUNS[run.name]))
    recipe["train"]["steps"] = 20
    continue_run(run, lambda progress: None, recipe)
    scores = json.loads((run / "scores.json").read_text())
    assert scores["steps"] == 20 and scores["delivered"]["loss"] == scores["valid"]["loss"]


def continue_run(run: Path, watch: Any, recipe: dict[str, Any] | None = None) -> None:
    recipe = json.loads(json.dumps(recipe or RUNS[run.name]))
    for name in ("pairs", "text", "valid"):
        files = recipe["data"].get(name, [])
        recipe["data"][name] = [str(run.parent / file) for file in files]
    weft.train(recipe, run, watch, device="cpu")


def read_metrics(path: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [without_speed(line) for line in lines]


def read_scores(folder: Path) -> dict[str, Any]:
    return without_speed(json.loads((folder / "scores.json").read_text()))


def without_speed(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in ("tokens_per_second", "seconds")}


def assert_close(values: Any, expected: Any) -> None:
    """Equal structure, and numbers within CLOSE."""
    if isinstance(expected, dict):
        assert values.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(values[key], value)
    elif isinstance(expected, list):
        assert len(values) == len(expected)
        for value, other in zip(values, expected, strict=True):
            assert_close(value, other)
    else:
        assert values == pytest.approx(expected, rel=CLOSE)
