"""Two processes (gloo) train like one: the same losses, the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from .material import write_pairs

RECIPE = """
[model]
width = 16
num_layers = 2
max_len = 32
dropout = 0.0
attention = { num_heads = 2 }
feedforward = { kind = "relu", width = 32 }
[tokenizer]
vocab_size = 300
[train]
steps = 12
batch_tokens = 150
save_every = 5
evaluate_every = 6
average = 2
accumulate = 2
bpe_dropout = 0.1
optimiser = { lr = 0.01 }
schedule = { warmup = 4 }
"""


def launch(folder: Path, out: Path, processes: int, *changes: str, text: str = "") -> None:
    """Train on pairs, or with the objective `text` on the sources alone."""
    source, target = write_pairs(folder)
    settings = folder / "recipe.toml"
    settings.write_text(RECIPE)
    files = ["--text", source, "--objective", text] if text else ["--pairs", source, target]
    valid = [source] if text else [source, target]
    arguments = ["-m", "weft", "train", settings, *files, "--device", "cpu"]
    arguments += ["--valid", *valid, "--out", out]
    for change in changes:
        arguments += ["--set", change]
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*start, *map(str, arguments)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line.get("loss", line.get("valid_loss")) for line in lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    launch(folder, folder / "run", 1)
    return folder / "run"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "is_sharded",
    [pytest.param(False, id="ddp"), pytest.param(True, id="fsdp", marks=pytest.mark.slow)],
)
def test_two_processes_have_the_losses_of_one(
    is_sharded: bool, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    launch(tmp_path, out, 2, f"train.shard={str(is_sharded).lower()}")
    assert losses(out) == pytest.approx(losses(alone), abs=1e-4)
    ours, theirs = (load_file(run / "model.safetensors") for run in (out, alone))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-3, rtol=1e-3)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_two_processes_read_one_text_like_one(tmp_path: Path) -> None:
    """The first encodes it; both map the same ids and read their own samples."""
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        launch(folder, folder / "run", processes, "train.bpe_dropout=0", text="mlm")
        assert not (folder / "run" / "tokens").exists(), "a finished run needs no ids"
    alone, together = (losses(tmp_path / name / "run") for name in ("1", "2"))
    assert together == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_sharded", [False, True], ids=["ddp", "fsdp"])
def test_a_checkpoint_of_two_processes_is_one_of_one_process(
    is_sharded: bool, alone: Path, tmp_path: Path
) -> None:
    """Stopped with two processes, continued by one, and the other way round."""
    for first, second in ((2, 1), (1, 2)):
        folder = tmp_path / f"{first}-{second}"
        folder.mkdir()
        out, shard = folder / "run", f"train.shard={str(is_sharded).lower()}"
        launch(folder, out, first, shard)
        for name in ("model.safetensors", "scores.json", "config.json"):
            (out / name).unlink()
        checkpoints = sorted((out / "checkpoints").iterdir())
        for path in checkpoints[1:]:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        launch(folder, out, second, shard)
        assert losses(out) == pytest.approx(losses(alone), abs=1e-4)
