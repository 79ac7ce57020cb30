"""`weft bench`: rows for people, for programs and as a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.app import main

TINY = ["bench", "attention", "--lengths", "32,64", "--kernels", "flash", "--patterns", "window"]
TINY += ["--heads", "2", "--head-size", "8", "--repeats", "1", "--threads", "1"]


def test_json_holds_the_promised_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "rows.png"
    assert main([*TINY, "--json", "--plot", str(drawing)]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert [
        (row["kernel"], row["pattern"], row["length"], row["pass"]) for row in result["rows"]
    ] == [
        ("flash", "window", length, name)
        for length in (32, 64)
        for name in ("forward", "forward+backward")
    ]
    assert all(row["seconds"] > 0 and row["peak_bytes"] >= 0 for row in result["rows"])
    assert {"processor", "cores", "threads", "torch"} <= set(result["machine"])
    assert drawing.stat().st_size > 0 and str(drawing) in printed.err


def test_a_table_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    printed = capsys.readouterr()
    assert "peak extra MB" in printed.out and printed.out.count("window") == 2


def test_the_scheduler_alone_needs_neither_model_nor_peers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawing = tmp_path / "rows.png"
    tree = ["bench", "engine", "--workloads", "tree,waiting"]
    assert main([*tree, "--json", "--plot", str(drawing)]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert [row["workload"] for row in result["rows"]] == ["tree", "waiting"]
    assert [goal["goal"].split(":")[0] for goal in result["goals"]] == ["tree", "waiting"]
    assert {"rows", "ratios", "goals", "machine", "settings"} == set(result)
    assert drawing.stat().st_size > 0 and str(drawing) in printed.err
    assert main(["bench", "engine", "--workloads", "tree"]) == 0
    shown = capsys.readouterr().out
    assert "hit rate" in shown and "at least 0.95" in shown and "yes" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine", "--workloads", "decode,tre"], "'tre' is not a known workload. Did you mean"),
        (["engine", "--systems", "llama"], "'llama' is not a known system"),
        (["engine", "no-such-model", "--workloads", "decode"], "there is no such model"),
        (["translate", "m", "--source", "s", "--beams", "1,five"], "--beams is '1,five'"),
        (["translate", "m"], "Missing option '--source'"),
        (["peers", "lama_cpp"], "Did you mean 'llama_cpp'"),
    ],
)
def test_wrong_usage_of_the_side_by_side_ones_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) in (1, 2)
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == "" and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "64,many"], "--lengths is '64,many'"),
        (["--kernels", "falsh"], "Did you mean 'flash'"),
        (["--patterns", "circle"], "'circle' is not a known attention pattern"),
        (["--lengths", "0"], "length is 0"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "attention", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


@pytest.mark.parametrize("name", ["attention", "engine", "translate"])
def test_help_does_not_import_torch(name: str) -> None:
    code = (
        f"import sys; from weft.cli.app import main; main(['bench', '{name}', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--plot" in done.stdout
