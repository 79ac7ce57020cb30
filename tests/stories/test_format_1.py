"""Files of format 1 are read by this version, or it names the version that reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import weft
from tests.data.format_1.write import CACHED, RUN, STOP
from tests.stories.test_old_files import CLOSE, assert_close, read_metrics, read_scores
from weft.checkpoint.verification import verify
from weft.core.errors import DataError

FOLDER = Path(__file__).parents[1] / "data" / "format_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
MAY_DIFFER = {"version", "torch", "kernels", "processor", "weights"}
"""Parts of the key of a cache file that another version or machine changes."""
NUM_CACHED = 16
OTHER_VERSION = r"was saved with \w+ .* but this engine has .*Load it with the"


def test_a_model_folder_gives_the_recorded_completions():
    assert {check.result for check in verify(FOLDER / "model")} == {"ok"}
    model = weft.load(FOLDER / "model")
    for prompt, text in EXPECTED.items():
        assert model.generate(prompt, max_tokens=8, temperature=0) == text


def test_a_cache_file_of_another_version_is_refused_with_what_differs():
    with pytest.raises(DataError, match=OTHER_VERSION):
        weft.load(FOLDER / "model").client.engine.load_cache(FOLDER / "model.cache")


def test_a_cache_file_is_read_and_its_rows_are_those_of_the_model(monkeypatch):
    """Its key contains a hash of the sources that compute, so it is set to that of the file."""
    with safe_open(FOLDER / "model.cache", framework="np") as file:
        stored = {name: value for name, value in file.metadata().items() if name != "sums"}
    without, model = weft.load(FOLDER / "model"), weft.load(FOLDER / "model")
    key = model.client.engine.cache_key
    assert key.keys() == stored.keys()
    assert {name for name in key if key[name] != stored[name]} <= MAY_DIFFER
    monkeypatch.setitem(vars(model.client.engine), "cache_key", stored)
    loaded = model.client.engine.load_cache(FOLDER / "model.cache")
    assert loaded.num_tokens == NUM_CACHED and loaded.num_left_out == 0
    texts = [m.generate(CACHED, max_tokens=4, temperature=0) for m in (without, model)]
    assert texts[0] == texts[1]
    hits = [m.client.engine.statistics().hit_tokens for m in (without, model)]
    assert hits == [0, NUM_CACHED], "the rows of the file were not used"


@pytest.fixture
def run(tmp_path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "data") / "run"


def test_an_interrupted_run_continues_to_the_recorded_weights(run):
    before, steps = read_metrics(run / "metrics.jsonl"), []
    assert {check.result for check in verify(run)} == {"ok"}
    recipe = {
        **RUN,
        "data": {key: [str(run.parent / f) for f in v] for key, v in RUN["data"].items()},
    }
    weft.train(recipe, run, lambda progress: steps.append(progress.step), device="cpu")
    assert steps[0] == STOP + 1, "the run started from the beginning"
    finished, after = run / "finished", read_metrics(run / "metrics.jsonl")
    assert after[: len(before)] == before
    assert_close(after, read_metrics(finished / "metrics.jsonl"))
    assert_close(read_scores(run), read_scores(finished))
    expected, weights = (load_file(f / "model.safetensors") for f in (finished, run))
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=CLOSE, atol=CLOSE, msg=name)


def test_a_run_that_is_not_finished_can_be_used():
    assert weft.load(FOLDER / "run").generate("1 2", max_tokens=4, temperature=0)
