"""`weft status`, `weft plot` and packaged recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pexpect
import pytest

from tests.training.material import files, recipe
from weft.cli.app import main
from weft.cli.curve_canvas import draw_curves
from weft.cli.run_metrics import Curve, read_curves
from weft.training.run import run_training


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_training(recipe(), files(folder), folder / "run")
    return folder / "run"


def test_status_of_a_finished_a_running_and_a_stopped_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(run), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["state"], values["step"], values["steps"]) == ("finished", 12, 12)
    assert values["delivered"] == 12 and 12 in values["checkpoints"]
    assert [row["step"] for row in values["evaluations"]] == [4, 8, 12]
    assert values["best"] in (4, 8, 12) and values["process"] is None

    other, seen = tmp_path / "run", []

    def watch(progress) -> None:
        if progress.step == 6 and not progress.scores:
            assert main(["status", str(other), "--json"]) == 0
            seen.append(json.loads(capsys.readouterr().out))
            assert main(["status", str(other)]) == 0
        if progress.step == 9:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_training(recipe(), files(tmp_path), other, watch)
    [running] = seen
    assert (running["state"], running["step"], running["checkpoints"]) == ("running", 6, [4])
    assert running["process"].startswith("process ") and running["seconds_left"] > 0
    capsys.readouterr()
    assert main(["status", str(other)]) == 0
    captured = capsys.readouterr()
    assert "stopped" in captured.out and "perplexity" in captured.out
    assert f"`weft train --out {other}` resumes this run" in captured.err


def test_status_of_a_folder_that_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 1
    assert "has no run.json, so it is not a training run" in capsys.readouterr().err


def test_curves_are_those_of_the_metrics(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    curves = read_curves(run)
    assert curves["loss"].values == losses and curves["loss"].steps == list(range(1, 13))
    assert curves["valid_loss"].steps == [4, 8, 12]
    long = Curve("loss", list(range(1, 1001)), [float(n) for n in range(1000)]).smoothed()
    assert len(long.steps) == 50 and long.values[0] == sum(range(20)) / 20


def test_a_falling_line_falls_from_the_first_to_the_last_row() -> None:
    curve = Curve("loss", [1, 2, 3], [3.0, 2.0, 1.0])
    lines = draw_curves([curve, Curve("up", [1, 3], [1.0, 3.0])], 43, 11, True).splitlines()
    assert lines[0].startswith("         3 |*") and lines[0].endswith("o")
    assert lines[10].startswith("         1 |o") and lines[10].endswith("*")
    assert lines[5].startswith("         2 |") and lines[11].split() == ["1", "step", "3"]
    assert lines[12].strip() == "* loss: 1 at step 3"
    braille = draw_curves([curve], 43, 11, False)
    assert any(0x2800 < ord(char) <= 0x28FF for char in braille)


def test_plot_prints_curves_and_writes_an_image(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(run)]) == 0
    assert "valid_loss" in capsys.readouterr().out
    out = tmp_path / "curves.png"
    assert main(["plot", str(run), str(run), "--metric", "valid_loss", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    assert main(["plot", str(run), "--metric", "bleu"]) == 1
    assert "there is no curve bleu. It has loss, lr," in capsys.readouterr().err
    assert main(["plot", str(run), "--follow", "--out", str(out)]) == 2
    assert "--out and --follow cannot be combined" in capsys.readouterr().err
    assert main(["plot", str(run), "--out", str(tmp_path / "new" / "curves.png")]) == 1
    assert f"curves.png: there is no folder {tmp_path / 'new'}. Create" in capsys.readouterr().err


def test_plot_prints_the_recorded_values_as_json(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = read_curves(run)
    assert main(["plot", str(run), "--json"]) == 0
    loss, valid_loss = map(json.loads, capsys.readouterr().out.splitlines())
    assert (loss["run"], loss["name"]) == (str(run), "loss")
    assert (loss["steps"], loss["values"]) == (curves["loss"].steps, curves["loss"].values)
    assert valid_loss["name"] == "valid_loss" and valid_loss["steps"] == [4, 8, 12]
    assert main(["plot", str(run), "--json", "--follow"]) == 2
    assert "--follow and --json cannot be combined" in capsys.readouterr().err


def test_plot_follows_a_run_until_ctrl_c(run: Path) -> None:
    arguments = ["-m", "weft", "plot", str(run), "--follow", "--interval", "0.1"]
    program = pexpect.spawn(sys.executable, arguments, dimensions=(24, 80), timeout=60)
    program.expect("valid_loss: [0-9.]+ at step 12")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 16, "valid_loss": 1.5, "valid_perplexity": 4.5}\n')
    program.expect("valid_loss: 1.5 at step 16")
    program.sendintr()
    program.expect(pexpect.EOF)
    program.wait()
    assert program.exitstatus == 130


def test_packaged_recipes_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["info", "tiny", "--json"]) == 0
    by_name = json.loads(capsys.readouterr().out)
    recipes = Path(__file__).parents[2] / "recipes"
    assert main(["info", str(recipes / "tiny.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == by_name
    files(tmp_path)
    train = ["--pairs", "words.src", "words.tgt", "--out", "run"]
    assert main(["train", "tny", *train]) == 1
    assert "tny: there is no such file. Did you mean 'tiny'?" in capsys.readouterr().err
