"""The native folder: what was saved comes back; what does not fit is named."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.tiny import LINES, TASKS, tiny
from weft.checkpoint import weft_folder
from weft.checkpoint.examples import ExampleInput
from weft.checkpoint.folder_files import CONFIG_FILE, EXAMPLES_FILE, SCORES_FILE
from weft.checkpoint.safetensors_header import WEIGHTS_FILE
from weft.checkpoint.sha256sums import SUMS_FILE
from weft.checkpoint.weft_folder import Checkpoint, load_folder, save_folder, unique_state
from weft.core.errors import ConfigError, DataError
from weft.core.forward_batch import ForwardBatch
from weft.models.transformer import EncoderDecoder


@pytest.fixture
def folder(tmp_path):
    save_folder(tmp_path / "m", tiny())
    return tmp_path / "m"


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    ids = [checkpoint.tokenizer.encode(line)[:4] for line in LINES]
    batch = ForwardBatch(torch.tensor(ids))
    model = checkpoint.model
    with torch.no_grad():
        return model(batch, batch) if isinstance(model, EncoderDecoder) else model(batch)


@pytest.mark.parametrize("tied", ["all", "output", "none"])
@pytest.mark.parametrize("kind", TASKS)
def test_a_model_comes_back_bit_for_bit(tmp_path, kind, tied):
    if tied == "all" and kind != "encoder-decoder":
        tied = "output"
    saved = tiny(kind, embedding={"tied": tied})
    save_folder(tmp_path, saved)
    loaded = load_folder(tmp_path)
    assert torch.equal(logits(loaded), logits(saved))
    assert loaded.model.config == saved.model.config
    assert (loaded.task, loaded.scores) == (TASKS[kind], {"bleu": 12.5})
    assert not loaded.model.training
    assert loaded.tokenizer.encode(LINES[1]) == saved.tokenizer.encode(LINES[1])
    before, after = (sum(p.numel() for p in c.model.parameters()) for c in (saved, loaded))
    assert before == after, "what was tied is tied again"


def test_a_tied_table_is_stored_once(tmp_path):
    sizes = {}
    for tied in ("all", "output", "none"):
        checkpoint = tiny(embedding={"tied": tied})
        save_folder(tmp_path / tied, checkpoint)
        stored = load_file(tmp_path / tied / WEIGHTS_FILE)
        assert sum(t.numel() for t in stored.values()) == sum(
            p.numel() for p in checkpoint.model.parameters()
        )
        sizes[tied] = len(stored)
    assert sizes["all"] < sizes["output"] < sizes["none"]
    first = next(iter(unique_state(tiny().model)))
    assert first in load_file(tmp_path / "all" / WEIGHTS_FILE)


def test_the_folder_can_be_saved_again(folder):
    other = tiny(seed=8)
    save_folder(folder, Checkpoint(other.model, other.tokenizer, "translate", {"chrf": 3}))
    loaded = load_folder(folder)
    assert torch.equal(logits(loaded), logits(other)) and loaded.scores == {"chrf": 3}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["write_json", "write_shard", "write_sums"])
def test_a_save_that_fails_leaves_the_folder_as_it_was(folder, monkeypatch, name):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weft_folder, name, full)
    with pytest.raises(OSError, match="No space left"):
        save_folder(folder, tiny(seed=8))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(OSError, match="No space left"):
        save_folder(folder.with_name("new"), tiny(seed=8))
    assert list(folder.parent.iterdir()) == [folder]


def test_a_loaded_model_keeps_nothing_of_its_file_and_learns(folder):
    model = load_folder(folder).model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    size = (folder / WEIGHTS_FILE).stat().st_size
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.write(b"\0" * size)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name
        assert weight.requires_grad and weight.dtype == torch.float32


def test_languages_are_stored_if_they_are_known(tmp_path):
    save_folder(tmp_path / "en-de", replace(tiny(), languages=("en", "de")))
    assert load_folder(tmp_path / "en-de").languages == ("en", "de")
    save_folder(tmp_path / "other", tiny())
    assert "languages" not in json.loads((tmp_path / "other" / CONFIG_FILE).read_text())
    assert load_folder(tmp_path / "other").languages is None


def test_examples_are_stored_and_a_damaged_file_is_ignored(tmp_path, caplog):
    examples = (ExampleInput("two cats", "zwei Katzen"), ExampleInput("\u6211"))
    save_folder(tmp_path / "m", replace(tiny(), examples=examples))
    assert load_folder(tmp_path / "m").examples == examples
    for text in ('{"examples": [{"text": 3}]}', "{", "[]"):
        (tmp_path / "m" / EXAMPLES_FILE).write_text(text)
        assert load_folder(tmp_path / "m").examples == ()
        assert "examples=ignored file=examples.json" in caplog.text
        caplog.clear()
    save_folder(tmp_path / "m", tiny())
    assert not (tmp_path / "m" / EXAMPLES_FILE).exists()


@pytest.mark.parametrize("languages", [["en"], "en-de", ["en", 3]])
def test_languages_that_are_not_two_codes_are_an_error(folder, languages):
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "languages": languages}))
    with pytest.raises(DataError, match="it must be two codes"):
        load_folder(folder)


def test_scores_may_be_absent(folder):
    (folder / SCORES_FILE).unlink()
    assert load_folder(folder).scores == {}


def test_files_are_plain_json_and_safetensors(folder):
    config = json.loads((folder / CONFIG_FILE).read_text())
    assert list(config) == ["weft", "task", "family", "use", "model"]
    assert config["model"]["width"] == 32
    names = {path.name for path in folder.iterdir()}
    assert names == {
        CONFIG_FILE,
        WEIGHTS_FILE,
        SCORES_FILE,
        SUMS_FILE,
        "tokenizer.json",
        "tokenizer_config.json",
    }


def change_config(folder, **changes):
    values = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(values | changes))


def test_a_folder_that_is_none_is_named(folder, tmp_path):
    with pytest.raises(
        DataError, match=f"nowhere: has no {CONFIG_FILE}: this is not a model folder"
    ):
        load_folder(tmp_path / "nowhere")
    change_config(folder, weft=99)
    with pytest.raises(
        DataError, match="says weft = 99: this version reads 1. Use the Weft version"
    ):
        load_folder(folder)


def test_settings_that_cannot_work_are_named(folder):
    change_config(folder, model={"widht": 32})
    with pytest.raises(ConfigError, match="widht"):
        load_folder(folder)
    (folder / CONFIG_FILE).write_text("{")
    with pytest.raises(DataError, match=f"{CONFIG_FILE}: cannot be read as JSON"):
        load_folder(folder)


def test_missing_and_broken_weights_are_named(folder):
    content = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(content[:100])
    with pytest.raises(
        DataError, match=f"{WEIGHTS_FILE}: is not a complete safetensors file .*Copy it again"
    ):
        load_folder(folder)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(DataError, match=f"{WEIGHTS_FILE}: there is no such file. Copy the whole"):
        load_folder(folder)


def test_a_missing_tokenizer_is_named(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="tokenizer.json: there is no such tokenizer"):
        load_folder(folder)


def test_weights_of_another_model_are_named(folder):
    state = load_file(folder / WEIGHTS_FILE)
    first, second, *_ = state
    wrong = dict(state)
    del wrong[first]
    save_file(wrong, folder / WEIGHTS_FILE)
    with pytest.raises(DataError, match=f"does not match config.json: {first} is missing. Use the"):
        load_folder(folder)
    save_file({**state, "extra": torch.ones(2)}, folder / WEIGHTS_FILE)
    with pytest.raises(DataError, match="does not match config.json: extra is not in the model"):
        load_folder(folder)
    save_file({**state, second: torch.ones(7, 9)}, folder / WEIGHTS_FILE)
    with pytest.raises(DataError, match=rf"{second} has shape \(7, 9\), expected \("):
        load_folder(folder)
    save_file({"extra": torch.ones(2)}, folder / WEIGHTS_FILE)
    with pytest.raises(DataError, match=rf"is missing; .*is missing and {len(state) - 2} more"):
        load_folder(folder)


def test_a_model_that_does_not_fit_is_left_as_it_was(folder):
    model = tiny(seed=8).model
    before = {name: tensor.clone() for name, tensor in unique_state(model).items()}
    state = load_file(folder / WEIGHTS_FILE)
    with pytest.raises(DataError):
        weft_folder.copy_state({**state, "extra": torch.ones(2)}, model, folder / WEIGHTS_FILE)
    assert all(torch.equal(before[name], now) for name, now in unique_state(model).items())
