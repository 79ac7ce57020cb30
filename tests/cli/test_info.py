"""`weft info`: the numbers of a recipe, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import tiny_folder
from tests.soak.checkpoint_bases import base_folder, model_path
from weft.checkpoint.formats import convert
from weft.cli.app import main
from weft.models.config import ModelConfig
from weft.models.cost import cost_of

RECIPE = """
[model]
kind = "decoder"
vocab_size = 100
width = 32
num_layers = 2
max_len = 64
attention = { num_heads = 4 }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return str(path)


def test_json_holds_the_promised_keys(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", recipe, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    config = ModelConfig(
        kind="decoder",
        vocab_size=100,
        width=32,
        num_layers=2,
        max_len=64,
        attention={"num_heads": 4},
    )
    cost = cost_of(config)
    for name in ("parameters", "kv_bytes_per_token", "flops_per_token"):
        assert result[name] == getattr(cost, name)
    assert ModelConfig.from_dict(result["model"]) == config


def test_compare_heads_has_one_row_a_kind(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", recipe, "--compare", "heads", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["heads"] for row in rows] == ["mha", "gqa", "mqa", "mla"]
    assert main(["info", recipe, "--compare", "heads"]) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in ("mha", "gqa", "mqa", "mla", "relative to mha"))


def test_set_changes_one_part(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--set", "model.attention.kind=mqa", "--set", "model.position.kind=rotary"]
    assert main(["info", recipe, "--json", *changes]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"]["attention"]["kind"] == "mqa"
    assert result["model"]["attention"]["num_heads"] == 4
    assert result["model"]["position"]["kind"] == "rotary"
    assert result["kv_bytes_per_token"] == 2 * 2 * 8 * 4


def test_a_model_folder_is_described_like_its_recipe(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", recipe, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (tmp_path / "model").mkdir()
    settings = {"weft": 1, "task": "lm", "model": result["model"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    assert main(["info", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result


def test_people_get_a_table(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", recipe]) == 0
    text = capsys.readouterr().out
    assert "parameters" in text and "cache bytes per token" in text


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["no-such.toml"], 1, "no-such.toml: there is no such file"),
        (
            ["{recipe}", "--set", "model.widht=3"],
            2,
            "model.widht is not a setting. Did you mean 'width'?",
        ),
        (
            ["{recipe}", "--set", "model.atention.kind=mla"],
            2,
            "model.atention is not a setting. Did you mean 'attention'?",
        ),
        (["{recipe}", "--set", "model.width=0"], 2, "model.width is 0: it must be"),
        (
            ["{recipe}", "--set", "model.attention.kind=gla"],
            2,
            "model.attention.kind is 'gla': all",
        ),
        (["{recipe}", "--set", "model.attention.num_heads=3"], 2, "in model"),
        (["{recipe}", "--set", "width=3"], 2, "its name must begin with 'model.'"),
        (["{recipe}", "--set", "model.width"], 2, "has no value"),
        (["{folder}"], 1, "has no config.json, so it is not a model folder"),
        (["{empty}"], 2, "has no [model] section"),
        (["{recipe}", "--dtype", "int4"], 2, "'int4' is not a known dtype"),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str],
    code: int,
    sentence: str,
    recipe: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    places = {"recipe": recipe, "folder": str(tmp_path), "empty": str(empty)}
    assert main(["info", *(part.format(**places) for part in arguments)]) == code
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.out == "" and "Traceback" not in captured.err


def test_quantization_and_the_sizes_on_disk_and_in_memory_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_folder(tmp_path / "m", "decoder")
    convert(model_path(base_folder("llama gguf")), tmp_path / "q8.gguf", "gguf", dtype="q8_0")
    capsys.readouterr()

    def info(model: str) -> dict[str, Any]:
        assert main(["info", str(tmp_path / model), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    floats, quantized = info("m"), info("q8.gguf")
    assert floats["formats"] == {"F32": floats["parameters"]} and floats["quantization"] is None
    assert floats["memory_bytes"] == floats["weight_bytes"]
    assert (
        floats["disk_bytes"]
        == sum(file.stat().st_size for file in (tmp_path / "m").iterdir())
        - (tmp_path / "m" / "SHA256SUMS").stat().st_size
    )
    assert list(quantized["formats"]) == ["Q8_0", "F32"] and quantized["quantization"] == "Q8_0"
    assert quantized["disk_bytes"] == (tmp_path / "q8.gguf").stat().st_size
    assert quantized["memory_bytes"] < quantized["weight_bytes"] / 2
    monkeypatch.setenv("WEFT_NATIVE", "0")
    assert info("q8.gguf")["memory_bytes"] == quantized["weight_bytes"]
    assert main(["info", str(tmp_path / "q8.gguf")]) == 0
    text = capsys.readouterr().out
    assert "Q8_0 9" in text and "bytes on disk" in text and "bytes in memory" in text
