"""The model's own sampling defaults in `weft generate` and `weft chat`: the command line comes
first, then the model, then ours; and what is used is printed once."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.engine.tiny import tiny
from weft.checkpoint.families.generation_config import GenerationConfig, decoder_generation
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.weft_folder import TEMPLATE_FILE, save_folder
from weft.cli.app import main

OWN = {"temperature": 0.9, "top_k": 7, "repetition_penalty": 1.3}
SHOWN = "sampling with the model's defaults: "


def folder_with(path: Path, **sampling: float) -> Path:
    checkpoint = replace(tiny("decoder"), generation_config=GenerationConfig(sampling=sampling))
    save_folder(path, checkpoint)
    (path / TEMPLATE_FILE).write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("lm") / "model", **OWN)


@pytest.mark.parametrize(
    ("options", "keywords", "line"),
    [
        ([], OWN, "--temperature 0.9 --top-k 7 --repetition-penalty 1.3"),
        (["--top-k", "0"], {**OWN, "top_k": 0}, "--temperature 0.9 --repetition-penalty 1.3"),
        (["--temperature", "0"], {**OWN, "temperature": 0.0}, "--repetition-penalty 1.3"),
    ],
)
def test_options_come_before_the_defaults_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture, options: list[str], keywords: dict, line: str
) -> None:
    expected = weft.load(folder).generate("the cat", 12, seed=5, **keywords)
    seed = [] if keywords["temperature"] == 0 else ["--seed", "5"]
    assert main(["generate", str(folder), "the cat", "--max-tokens", "12", *seed, *options]) == 0
    assert capsys.readouterr() == (expected + "\n", SHOWN + line + "\n")


def test_chat_uses_them_too(
    folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = weft.load(folder).generate("the cat", 12, **OWN)
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat"))
    assert main(["chat", str(folder), "--max-tokens", "12"]) == 0
    shown = capsys.readouterr()
    assert shown.out == expected + "\n" and shown.err.count(SHOWN) == 1


def test_defaults_without_effect_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = folder_with(tmp_path / "model", top_p=0.5)
    assert main(["generate", str(folder), "the cat", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().err == ""


def test_invalid_defaults_are_said_to_be_the_models(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    call = ["generate", str(folder_with(tmp_path / "m", temperature=-1.0)), "a"]
    assert main(call) == 1
    error = capsys.readouterr().err
    assert error.startswith("the model's default sampling parameters cannot be used: temperature")
    assert "-1" in error and error.count("\n") == 1
    assert main([*call, "--temperature", "0", "--max-tokens", "2"]) == 0


def test_do_sample_without_a_temperature_is_a_temperature_of_1() -> None:
    path = Path("generation_config.json")
    config = decoder_generation(HFConfig({"do_sample": True, "top_p": 0.9}, path))
    assert config.sampling == {"temperature": 1.0, "top_p": 0.9}
    assert decoder_generation(HFConfig({"do_sample": False}, path)).sampling == {}
