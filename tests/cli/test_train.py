"""`weft train`: from two text files to a model folder, and every way to get it wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.checkpoint.weft_folder import load_folder
from weft.cli.app import main, spread
from weft.cli.train import parse_minutes

from ..training.material import write_pairs

SMALL = [
    "model.width=16",
    "model.num_layers=1",
    "model.max_len=32",
    "model.attention.num_heads=2",
    "tokenizer.vocab_size=300",
    "train.steps=4",
    "train.batch_tokens=200",
    "train.save_every=2",
    "train.evaluate_every=2",
]


def run(*arguments: object, changes: list[str] = SMALL) -> int:
    settings = [part for change in changes for part in ("--set", change)]
    return main(["train", *map(str, arguments), *settings])


def test_pairs_become_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_pairs(tmp_path)
    out = tmp_path / "model"
    assert run("--pairs", source, target, "--valid", source, target, "--out", out, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 4 and result["out"] == str(out) and result["valid"]["loss"] > 0
    checkpoint = load_folder(out)
    assert checkpoint.task == "translate" and checkpoint.model.config.kind == "encoder-decoder"


@pytest.mark.parametrize(("objective", "kind"), [("lm", "decoder"), ("mlm", "encoder")])
def test_text_becomes_a_decoder_or_an_encoder(tmp_path: Path, objective: str, kind: str) -> None:
    source, target = write_pairs(tmp_path)
    out = tmp_path / "model"
    changes = [*SMALL, "train.valid_share=0.2", "model.position.kind=rotary"]
    code = run("--text", source, target, "--objective", objective, "--out", out, changes=changes)
    assert code == 0
    assert load_folder(out).model.config.kind == kind
    assert load_folder(out).model.config.position.kind == "rotary"


def test_a_tsv_is_read_by_its_columns(tmp_path: Path) -> None:
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{i}\tword{i}\tdrow{i}\n" for i in range(30)))
    out = tmp_path / "model"
    assert run("--tsv", tsv, "--columns", "3", "2", "--out", out) == 0
    assert load_folder(out).task == "translate"


def test_files_that_a_recipe_names_are_found_beside_it(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    recipe = tmp_path / "own.toml"
    recipe.write_text('[data]\npairs = ["words.src", "words.tgt"]\n')
    assert run(recipe, "--out", tmp_path / "model") == 0
    assert load_folder(tmp_path / "model").task == "translate"


def test_the_same_command_again_goes_on_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_pairs(tmp_path)
    arguments = ["--pairs", source, target, "--out", tmp_path / "model"]
    assert run(*arguments) == 0
    assert run(*arguments) == 0
    assert run(*arguments, changes=[*SMALL, "train.seed=7"]) == 2
    assert "recipe.train.seed was 1 and is now 7" in capsys.readouterr().err


def bad(folder: Path) -> dict[str, tuple[list[object], int, str]]:
    """Wrong files and arguments: the call, its exit code, and a part of the sentence."""
    source, target = write_pairs(folder)
    short, empty, broken = folder / "short", folder / "empty", folder / "broken"
    short.write_text("one line\n")
    empty.write_text("")
    broken.write_bytes(b"good\nbad \xff byte\n")
    out = ["--out", folder / "model"]
    return {
        "line counts": (["--pairs", source, short, *out], 1, "short"),
        "empty": (["--text", empty, *out], 1, "empty"),
        "not utf-8": (["--text", broken, *out], 1, "broken, line 2"),
        "missing": (["--text", folder / "no-such", *out], 1, "no-such: there is no such file"),
        "nothing": ([*out], 2, "holds no run to resume, and no files are given"),
        "both": (
            ["--pairs", source, target, "--text", source, *out],
            2,
            "pairs and text given",
        ),
        "one of a pair": (["--pairs", source, *out], 2, "1 training files but pairs need 2"),
        "standard input": (["--text", "-", *out], 2, "- is not a regular file"),
        "column 0": (["--tsv", source, "--columns", 0, 1, *out], 2, "counted from 1"),
        "no name of a folder": (["--text", source, "--out", ""], 2, "--out: the name is empty"),
        "a file as folder": (["--text", source, "--out", target], 1, "cannot be written to"),
    }


NAMES = (
    "line counts|empty|not utf-8|missing|nothing|both|one of a pair|standard input|column 0|"
    "no name of a folder|a file as folder"
)


@pytest.mark.parametrize("name", NAMES.split("|"))
def test_bad_data_gets_one_sentence_before_any_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, code, sentence = bad(tmp_path)[name]
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert sentence in captured.err and "Traceback" not in captured.err
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_options_with_several_values_are_spread_for_typer() -> None:
    many = ("--text", "--valid")
    args = ["train", "r.toml", "--text", "a", "b", "--out", "x", "--valid", "c", "-", "--json"]
    assert spread(args, many) == [
        "train", "r.toml", "--text", "a", "--text", "b", "--out", "x", "--valid", "c",
        "--valid", "-", "--json",
    ]  # fmt: skip


def test_languages_come_from_the_suffixes_or_the_option(tmp_path: Path) -> None:
    source, target = (
        path.rename(tmp_path / f"train.{code}")
        for path, code in zip(write_pairs(tmp_path), ("en", "de"), strict=True)
    )
    assert run("--pairs", source, target, "--out", tmp_path / "a") == 0
    assert load_folder(tmp_path / "a").languages == ("en", "de")
    arguments = ("--pairs", source, target, "--out", tmp_path / "b", "--languages")
    assert run(*arguments, "pt-BR", "zh-Hans") == 0
    assert load_folder(tmp_path / "b").languages == ("pt-BR", "zh-Hans")
    for name in ("a", "b"):  # what a resumed run is compared with has no languages
        values = json.loads((tmp_path / name / "run.json").read_text())
        assert "languages" not in json.dumps([values["recipe"], values["files"]])


def test_wrong_languages_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_pairs(tmp_path)
    out = ("--out", tmp_path / "model", "--languages")
    assert run("--pairs", source, target, *out, "en") == 2
    assert "1 languages were given: a translation model has two" in capsys.readouterr().err
    assert run("--pairs", source, target, *out, "en", "German") == 2
    assert "'German' is not a language code" in capsys.readouterr().err
    assert run("--text", source, *out, "en", "de") == 2
    assert "text files train no translation model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("1m", "Use at least 2m"),
        ("119s", "Use at least 2m"),
        ("10", "must be a time such as 10m"),
        ("10 minutes", "must be a time such as 10m"),
        ("", "must be a time such as 10m"),
    ],
)
def test_a_time_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str, message: str
) -> None:
    source, target = write_pairs(tmp_path)
    out = tmp_path / "model"
    assert run("--pairs", source, target, "--time", time, "--out", out, changes=[]) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_a_time_and_a_number_of_steps_contradict_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write_pairs(tmp_path)
    assert run("--pairs", source, target, "--time", "5m", "--out", tmp_path / "model") == 2
    assert "--time is 5m but --set gives train.steps" in capsys.readouterr().err
    changes = ["train.minutes=5", "train.steps=4"]
    assert run("--pairs", source, target, "--out", tmp_path / "model", changes=changes) == 2
    assert "train.minutes is 5 but --set gives train.steps" in capsys.readouterr().err


def test_all_problems_of_a_recipe_are_in_one_message_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--pairs", *write_pairs(tmp_path), "--out", tmp_path / "model"]
    assert run("tiny", *arguments, changes=["train.steps=0", "train.seed=-1"]) == 2
    assert "2 problems in the recipe tiny:\n  - train.steps is 0" in capsys.readouterr().err


def test_times_have_hours_minutes_and_seconds() -> None:
    assert [parse_minutes(text) for text in ("10m", "1h30m", "90m", "150s", "2h")] == [
        *(10, 90, 90, 2.5, 120)
    ]


def test_without_a_recipe_the_corpus_decides_and_settings_win(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path)
    arguments = ["--pairs", source, target, "--out", tmp_path / "model"]
    assert run(*arguments, changes=["train.steps=2", "model.num_layers=1"]) == 0
    saved = json.loads((tmp_path / "model" / "run.json").read_text())
    recipe = saved["recipe"]
    assert recipe["train"]["steps"] == 2 and "requested" not in saved, "there is nothing to probe"
    assert recipe["model"]["num_layers"] == 1 and recipe["model"]["width"] == 128
    assert recipe["train"]["optimiser"]["kind"] == "muon"
    assert recipe["train"]["valid_share"] == 0.05 and "valid" in json.loads(
        (tmp_path / "model" / "scores.json").read_text()
    )


def test_check_says_what_would_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = list(map(str, write_pairs(tmp_path)))
    assert main(["train", "--pairs", *files, "--check"]) == 0
    assert (
        "would train: width 128, 3 layers, bpe vocabulary of up to 2,000, 2,048 tokens a step; a "
        "probe of 10 s will plan the steps for at most about 60 minutes\n"
    ) in capsys.readouterr().err
    assert main(["train", "--pairs", *files, "--check", "--time", "10m"]) == 0
    error = capsys.readouterr().err
    assert "1,024 tokens a step" in error and "plan the steps for 10 minutes" in error
    assert main(["train", "tiny", "--pairs", *files, "--check", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["recipe"]["train"]["steps"] > 0


def test_a_folder_that_is_no_run_and_one_that_is_no_recipe_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'run'} holds no run to resume, and no files are given" in error
    assert main(["train"]) == 2
    assert "no files are given: a run needs --pairs SRC TGT" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert main(["train", str(tmp_path / "run")]) == 2
    assert f"not a recipe. `weft train --out {tmp_path / 'run'}` resumes" in capsys.readouterr().err


def test_ctrl_c_after_the_last_step_says_how_to_finish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    command = ["--pairs", *write_pairs(tmp_path), "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("weft.training.run.choose_weights", interrupted)
        assert run(*command) == 130
    assert f"stopped; `weft train --out {tmp_path / 'run'}` resumes" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "scores.json").is_file()
    with monkeypatch.context() as patch:
        patch.setattr("weft.training.run.train_tokenizer", interrupted)
        assert run(*command[:-1], tmp_path / "other") == 130
    assert "stopped before the first step" in capsys.readouterr().err
