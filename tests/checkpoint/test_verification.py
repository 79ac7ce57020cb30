"""Every file of a model is compared with its recorded SHA-256, and each difference is named."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from tests.engine.tiny import tiny
from tests.training.material import files, recipe
from weft.checkpoint.formats import convert
from weft.checkpoint.model_catalog import CATALOG
from weft.checkpoint.pulled_models import pulled_folder
from weft.checkpoint.sha256sums import SUMS_FILE
from weft.checkpoint.verification import verify
from weft.checkpoint.weft_folder import save_folder
from weft.cli.app import main
from weft.core.errors import DataError
from weft.training.run import run_training

MODEL_FILES = {
    *("config.json", "model.safetensors", "scores.json"),
    *("tokenizer.json", "tokenizer_config.json"),
}


@pytest.fixture
def folder(tmp_path):
    save_folder(tmp_path / "m", replace(tiny(), chat_template="{{ messages }}"))
    return tmp_path / "m"


def results(model):
    return {check.file: check.result for check in verify(model)}


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_every_file_is_recorded_and_each_change_is_found(folder):
    assert results(folder) == dict.fromkeys(MODEL_FILES | {"chat_template.jinja"}, "ok")
    for name in results(folder):
        content = (folder / name).read_bytes()
        flip_a_bit(folder / name)
        assert {file for file, result in results(folder).items() if result != "ok"} == {name}
        assert results(folder)[name] == "differs"
        (folder / name).unlink()
        assert results(folder)[name] == "missing"
        (folder / name).write_bytes(content)


def test_the_file_is_that_of_sha256sum(folder):
    command = ["sha256sum", "--check", "--strict", "--quiet", SUMS_FILE]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0


def test_a_folder_that_is_saved_again_has_its_new_hashes(folder):
    save_folder(folder, tiny(seed=8))
    assert set(results(folder).values()) == {"ok"}


def test_a_run_is_compared_with_all_its_checkpoints(tmp_path):
    out = tmp_path / "run"
    run_training(recipe(), files(tmp_path), out)
    parts = ("optimiser.safetensors", "state.json", "weights.safetensors")
    model_files = MODEL_FILES | {"examples.json"}
    expected = model_files | {f"checkpoints/{step:08d}/{p}" for step in (8, 12) for p in parts}
    assert results(out) == dict.fromkeys(expected, "ok")
    flip_a_bit(out / "checkpoints" / "00000008" / "optimiser.safetensors")
    assert results(out)["checkpoints/00000008/optimiser.safetensors"] == "differs"
    (out / "model.safetensors").unlink()  # as if it were not finished
    assert set(results(out)) == expected - model_files
    (out / "checkpoints" / "00000012" / SUMS_FILE).unlink()
    assert results(out)["checkpoints/00000012"] == "not recorded"


@pytest.mark.parametrize("to", ["hf", "weft"])
def test_converted_folders_have_hashes(folder, tmp_path, to):
    settings = {"attention": {"num_heads": 4, "bias": True}, "position": {"kind": "learned"}}
    save_folder(tmp_path / "lm", tiny("decoder", **settings))
    convert(tmp_path / "lm", tmp_path / "out", to)
    assert set(results(tmp_path / "out").values()) == {"ok"}
    assert "model.safetensors" in results(tmp_path / "out")


def test_pulled_models_are_compared_with_the_catalog(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    digest = hashlib.sha256(b"content").hexdigest()
    entry = replace(CATALOG["smollm2"], files={"smollm2.gguf": ("x", digest)})
    monkeypatch.setitem(CATALOG, "smollm2", entry)
    path = pulled_folder("smollm2")
    path.mkdir(parents=True)
    (path / "smollm2.gguf").write_bytes(b"content")
    assert results("smollm2") == {"smollm2.gguf": "ok"}
    (path / "smollm2.gguf").write_bytes(b"Content")
    assert results("smollm2") == {"smollm2.gguf": "differs"}


def test_a_folder_without_hashes_is_named(folder, tmp_path):
    (folder / SUMS_FILE).unlink()
    expected = f"m: has no {SUMS_FILE}: an older version of Weft or another program wrote it"
    with pytest.raises(DataError, match=expected):
        verify(folder)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match=f"x.gguf: has no {SUMS_FILE}"):
        verify(tmp_path / "x.gguf")
    with pytest.raises(DataError, match="there is no such model"):
        verify(tmp_path / "nowhere")
    (folder / SUMS_FILE).write_text("no hash\n")
    with pytest.raises(DataError, match=f"{SUMS_FILE}, line 1: is not a line of sha256sum"):
        verify(folder)


def test_the_command_names_what_differs_and_fails(folder, capsys):
    assert main(["info", str(folder), "--verify"]) == 0
    assert capsys.readouterr().err == ""
    flip_a_bit(folder / "model.safetensors")
    os.remove(folder / "config.json")
    assert main(["info", str(folder), "--verify"]) == 1
    captured = capsys.readouterr()
    assert "config.json is missing, model.safetensors was changed. Copy the" in captured.err
    assert "differs" in captured.out
    assert main(["info", str(folder), "--verify", "--json"]) == 1
    assert '"ok": false' in capsys.readouterr().out
    shutil.rmtree(folder)
    save_folder(folder, tiny())
    assert main(["info", str(folder), "--verify", "--json"]) == 0


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_whose_hash_was_cut_off_is_not_ok(folder, name):
    """Every other file was ok, and so was the folder."""
    lines = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
    (folder / SUMS_FILE).write_text(
        "".join(line for line in lines if not line.endswith(f"{name}\n"))
    )
    with pytest.raises(DataError, match=f"m: has {name}, which SHA256SUMS does not name: it was"):
        verify(folder)


def test_a_file_that_was_added_to_a_model_is_not_ok(folder):
    """Some change what is loaded: the index of shards, a template for chats, more weights."""
    (folder / "notes.txt").write_text("of the user")
    assert set(results(folder).values()) == {"ok"}
    for name in ("model.safetensors.index.json", "generation_config.json", "x.safetensors"):
        (folder / name).write_text("{}")
        with pytest.raises(DataError, match=f"has {name}, which SHA256SUMS does not name"):
            verify(folder)
        (folder / name).unlink()
    assert set(results(folder).values()) == {"ok"}


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "a/../../secret"])
def test_a_file_outside_of_the_folder_is_not_read(folder, name):
    """/dev/zero was read without end."""
    with (folder / SUMS_FILE).open("a") as sums:
        sums.write(f"{'0' * 64}  {name}\n")
    with pytest.raises(DataError, match=rf"SHA256SUMS, line \d: names '{name}', which is not in"):
        verify(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer_config.json"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_missing(folder, name):
    """A pipe was waited for, and a device read, without end."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert results(folder)[name] == "missing"
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    assert results(folder)[name] == "missing"
