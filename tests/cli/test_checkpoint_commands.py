"""embed and convert on small models of our own: what they print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import weft
from tests.engine.tiny import tiny_folder
from weft.cli.app import main

MARIAN = {
    "attention": {"num_heads": 4, "bias": True},
    "position": {"kind": "sinusoidal", "layout": "halves"},
    "norm": {"placement": "after"},
    "embedding": {"scale": True},
    "head": {"bias": True},
}


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_embed_gives_one_vector_a_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, text = tiny_folder(tmp_path / "model", kind), tmp_path / "text"
    text.write_text("the cat\na dog runs in the park\n\n")
    assert main(["embed", str(folder), str(text), "--json"]) == 0
    result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in result] == ["the cat", "a dog runs in the park", ""]
    vectors_BD = torch.tensor([one["vector"] for one in result])
    torch.testing.assert_close(vectors_BD.norm(dim=-1), torch.ones(3))
    alone_BD = weft.load(folder).embed(["the cat"])
    torch.testing.assert_close(vectors_BD[:1], alone_BD, atol=1e-5, rtol=1e-5)


def test_a_model_of_ours_is_written_for_transformers_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, out = tiny_folder(tmp_path / "model", **MARIAN), tmp_path / "out"
    asked = ["convert", str(folder), str(out), "--to", "hf", "--max-shard-size", "20KB", "--json"]
    code = main(asked)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert json.loads(shown.out)["family"] == "marian"
    assert (out / "model.safetensors.index.json").is_file()
    ours, again = weft.load(folder), weft.load(out)
    assert again.translate(["the cat"], beam=3) == ours.translate(["the cat"], beam=3)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(out)
    count = sum(weight.numel() for weight in ours.model.parameters())
    assert sum(weight.numel() for weight in theirs.parameters()) >= count
    assert main(["convert", str(folder), str(out), "--to", "hf"]) == 2
    assert "already exists" in capsys.readouterr().err


def test_the_error_names_the_settings_that_no_family_supports(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tiny_folder(tmp_path / "model", **{**MARIAN, "norm": {"placement": "before"}})
    assert main(["convert", str(folder), str(tmp_path / "out"), "--to", "hf"]) == 2
    result = capsys.readouterr().err
    assert "this model is not a marian: norm.placement is 'before', not 'after'." in result
    assert (
        "trained with --set model.norm.placement=after can be" in result and result.count("\n") == 1
    )
    assert not (tmp_path / "out").exists()
