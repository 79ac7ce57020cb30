"""Files of format 1 are read by this version, or it names the version that reads them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.data.format_1.write import CACHED, RUN, STOP
from tests.stories.test_old_files import CLOSE, assert_close, read_metrics, read_scores
from weft.checkpoint.verification import verify
from weft.core.errors import DataError

FOLDER = Path(__file__).parents[1] / "data" / "format_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
OTHER_VERSION = r"was saved with \w+ .* but this engine has .*Load it with the"


def test_a_model_folder_gives_the_recorded_completions():
    assert {check.result for check in verify(FOLDER / "model")} == {"ok"}
    model = weft.load(FOLDER / "model")
    for prompt, text in EXPECTED.items():
        assert model.generate(prompt, max_tokens=8, temperature=0) == text


def test_a_cache_file_is_loaded_or_names_what_differs():
    without, model = weft.load(FOLDER / "model"), weft.load(FOLDER / "model")
    try:
        loaded = model.client.engine.load_cache(FOLDER / "model.cache")
    except DataError as error:
        assert re.search(OTHER_VERSION, str(error)), str(error)
    else:
        assert loaded.num_tokens > 0
    texts = [m.generate(CACHED, max_tokens=4, temperature=0) for m in (without, model)]
    assert texts[0] == texts[1]


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
