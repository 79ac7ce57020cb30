"""README.md of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

from weft.checkpoint.verification import verify
from weft.cli.app import main
from weft.training.run import run_training

from .material import files, recipe, write_pairs
from .test_resume import RECIPE


def test_the_card_has_data_settings_scores_with_signature_and_command(tmp_path: Path) -> None:
    source, target = (
        path.rename(tmp_path / f"words.{code}")
        for path, code in zip(write_pairs(tmp_path), ("en", "de"), strict=True)
    )
    (tmp_path / "small.toml").write_text(RECIPE)
    out = tmp_path / "en-de"
    command = ["train", str(tmp_path / "small.toml"), "--pairs", str(source), str(target)]
    command += ["--valid", str(source), str(target), "--set", "train.seed=3", "--out", str(out)]
    assert main(command) == 0
    card = (out / "README.md").read_text()
    scores = json.loads((out / "scores.json").read_text())
    assert card.startswith("# en-de\n\nAn encoder-decoder Transformer for translation from English")
    assert f"| bleu | {scores['valid']['bleu']:.4g} | nrefs:1\\|case:mixed\\|" in card
    assert "scored on 2 validation lines" in card
    digest = json.loads((out / "run.json").read_text())["files"]["train"][0]
    assert f"| train | words.en | {digest} |" in card
    assert "60 pairs; 0 empty" in card and "- 60 of 60 validation pairs" in card
    assert "\nmodel.width = 16\n" in card and "\ntrain.seed = 3\n" in card
    assert "train.batch_tokens = 200" in card and "train.label_smoothing" not in card
    assert f"weft train {tmp_path}/small.toml --pairs" in card
    assert f"--out {out} --languages en de\n" in card
    assert "the model is that of step" in card
    assert {check.result for check in verify(out)} == {"ok"}
    (out / "README.md").write_text("mine")
    assert {check.result for check in verify(out)} == {"ok"}


def test_changes_of_settings_are_in_the_card(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_training(recipe(), files(tmp_path), out)
    run_training(recipe(steps=14), files(tmp_path), out)
    assert "- train.steps from 12 to 14 at step 12\n" in (out / "README.md").read_text()
