"""The delivered model is the best checkpoint, unless the mean is better by the same metric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from weft.core.errors import ConfigError, UsageError
from weft.training.delivery import describe_delivery
from weft.training.loop import Trainer
from weft.training.run import run_training

from .material import files, recipe


def mean_of(out: Path, steps: list[int]) -> dict[str, torch.Tensor]:
    parts = [load_file(out / "checkpoints" / f"{s:08d}" / "weights.safetensors") for s in steps]
    return {
        name: torch.stack([part[name].double() for part in parts]).mean(0).float()
        for name in parts[0]
    }


@pytest.mark.parametrize("is_mean_better", [False, True])
def test_the_better_one_on_the_validation_data_is_delivered(
    tmp_path: Path, is_mean_better: bool
) -> None:
    """Early means of a fast run are worse than its last weights; a run that jumps around at the
    end is best averaged."""
    out = tmp_path / "run"
    every = 2 if is_mean_better else 12
    lr = 0.3 if is_mean_better else 0.003
    schedule = {"kind": "constant", "warmup": 4}
    changes = {"steps": 60, "save_every": every, "evaluate_every": 20, "average": 5}
    scores = run_training(
        recipe(**changes, optimiser={"lr": lr}, schedule=schedule), files(tmp_path), out
    )
    delivered = scores["delivered"]
    [other] = delivered["others"]
    assert delivered["loss"] == scores["valid"]["loss"] < other["loss"]
    mean = [60 - every * n for n in (4, 3, 2, 1, 0)]
    assert (delivered["steps"] == mean) is is_mean_better
    assert (other["steps"] == mean) is not is_mean_better
    expected = mean_of(out, delivered["steps"])
    for name, tensor in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-7)
    assert json.loads((out / "scores.json").read_text()) == scores


def test_without_validation_data_the_mean_is_delivered(tmp_path: Path) -> None:
    from dataclasses import replace

    out = tmp_path / "run"
    scores = run_training(recipe(), replace(files(tmp_path), valid=()), out)
    assert scores["delivered"] == {"by": "loss", "steps": [8, 12], "others": []}
    expected = mean_of(out, [8, 12])
    for name, tensor in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-7)


def test_bleu_selects_the_checkpoint_with_the_highest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, bleus = tmp_path / "run", {4: 10.0, 8: 30.0, 12: 20.0}
    settings = recipe(best_by="bleu", average=1)
    trainers: list[Trainer] = []
    real = Trainer.evaluate

    def evaluate(self: Trainer, *args: object) -> dict[str, float]:
        trainers.append(self)
        return real(self, *args)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    scores = run_training(
        settings,
        files(tmp_path),
        out,
        make_scorer=lambda pairs, tokenizer: lambda model: {
            "bleu": bleus[trainers[-1].state.step], "chrf": 1.0
        },
    )  # fmt: skip
    assert scores["delivered"]["steps"] == [8] and scores["delivered"]["by"] == "bleu"
    assert (out / "checkpoints" / "00000008").is_dir()


def test_the_choice_is_described() -> None:
    others = [{"steps": [200, 300, 400], "loss": 0.444}]
    text = describe_delivery({"by": "loss", "steps": [400], "loss": 0.256, "others": others})
    assert text == (
        "the model is that of step 400 (loss 0.256); "
        "the mean of steps 200, 300 and 400 has loss 0.444"
    )
    assert describe_delivery({"by": "bleu", "steps": [4], "others": []}) == (
        "the model is that of step 4"
    )


def test_bleu_without_translations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train.best_by is bleu: weft.train translates nothing"):
        run_training(recipe(best_by="bleu"), files(tmp_path), tmp_path / "run")
    with pytest.raises(ConfigError, match="best_by is chrf but train.translate_lines is 0"):
        recipe(best_by="chrf", translate_lines=0)
    assert not (tmp_path / "run").exists()
