"""Export of a translation model trained with the settings of recipes/tatoeba.toml: `weft convert`
names the settings that Marian cannot represent; a model trained with the suggested settings is
loaded by `transformers`, with the same translations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import weft
from weft.cli.app import main
from weft.core.config import read_settings

from ..training.material import write_pairs

RECIPE = Path(__file__).parents[2] / "recipes" / "tatoeba.toml"
SMALL_MODEL = [
    "model.width=32",
    "model.num_layers=1",
    "model.max_len=40",
    "model.feedforward.width=64",
    "model.dropout=0.0",
    "tokenizer.vocab_size=300",
    "train.batch_tokens=400",
    "train.bpe_dropout=0.0",
    "train.evaluate_every=100",
    "train.save_every=100",
    "train.average=1",
    "train.schedule.warmup=10",
]


def train(out: Path, steps: int, changes: list[str]) -> Path:
    out.parent.mkdir(exist_ok=True)
    source, target = write_pairs(out.parent)
    settings = [*SMALL_MODEL, f"train.steps={steps}", *changes]
    options = [part for change in settings for part in ("--set", change)]
    assert main(["train", str(RECIPE), "--pairs", str(source), str(target), *options,
                 "--out", str(out)]) == 0  # fmt: skip
    return out


def test_a_model_trained_with_the_suggested_settings_is_exported_as_marian(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_settings(RECIPE)["model"]["norm"]["placement"] == "before"
    before = train(tmp_path / "before" / "model", 2, [])
    assert main(["convert", str(before), str(tmp_path / "hf"), "--to", "hf"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "this model is not a marian: " in message and not (tmp_path / "hf").exists()
    changes = re.findall(r"--set (model\S+)", message)
    assert "model.norm.placement=after" in changes

    model = train(tmp_path / "after" / "model", 120, changes)
    assert main(["convert", str(model), str(tmp_path / "hf"), "--to", "hf"]) == 0
    assert "written as marian" in capsys.readouterr().err
    assert_same_translations(model, tmp_path / "hf")


def assert_same_translations(model: Path, folder: Path) -> None:
    """Greedy and with 4 beams; texts of several lengths in one batch."""
    ours = weft.load(model)
    theirs, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    texts = ["abcdef", "fa", "deadbeef", "cab", "bad face"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    rows = [ids[: sum(mask)] for ids, mask in zip(*(batch[k].tolist() for k in batch), strict=True)]
    assert rows == ours.tokenizer.encode_batch(texts)
    for beam in (1, 4):
        expected = theirs.generate(
            **batch, num_beams=beam, do_sample=False, length_penalty=1.0, early_stopping=beam > 1,
            max_new_tokens=30,
        )  # fmt: skip
        translations = tokenizer.batch_decode(expected, skip_special_tokens=True)
        assert ours.translate(texts, beam=beam, max_tokens=30) == translations
        assert len(set(translations)) == len(texts), "the model translates different texts alike"
