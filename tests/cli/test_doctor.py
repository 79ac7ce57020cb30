"""`weft doctor`: everything a bug report needs, whatever is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft import __version__
from weft.cli import doctor
from weft.cli.app import main
from weft.native.library import native, openmp_libraries


def described(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json", *args]) == 0
    sections: dict[str, dict[str, str]] = json.loads(capsys.readouterr().out)
    return sections


def test_a_report_has_what_the_machine_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "kernels", lambda: {})
    (tmp_path / "cache/models/smollm2").mkdir(parents=True)
    report = described(capsys)
    assert list(report) == list(doctor.SECTIONS)
    assert report["versions"]["weft"].startswith(__version__)
    assert report["versions"]["torch"] == torch.__version__.partition("+")[0] or (
        report["versions"]["torch"] == torch.__version__
    )
    allowed = len(os.sched_getaffinity(0))
    assert (
        report["processor"]["CPUs"]
        == f"{os.cpu_count()}, of which {allowed} are allowed (affinity)"
    )
    assert report["threads"]["threads"] == str(torch.get_num_threads())
    assert report["folders"]["models"] == "smollm2"
    assert report["folders"]["cache"].startswith(f"{tmp_path / 'cache'}, ")
    assert report["environment"]["WEFT_CACHE"] == str(tmp_path / "cache")
    assert "GiB" in report["memory"]["machine"]


def test_it_is_readable_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}:\n" in shown for name in doctor.SECTIONS)
    assert max(map(len, shown.splitlines())) < 400


@pytest.mark.skipif(native() is None, reason="needs the compiled kernels")
def test_the_kernels_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = described(capsys)["kernels"]
    assert set(kernels) == {"native", "instruction set", "panel width", "library"}
    assert Path(kernels["library"]).is_file()


def test_secrets_of_the_environment_are_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_API_KEY", "hidden")
    monkeypatch.setenv("WEFT_TOKEN", "hidden")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    report = described(capsys)
    assert "hidden" not in json.dumps(report)
    assert report["environment"]["GOMP_SPINCOUNT"] == report["threads"]["GOMP_SPINCOUNT"] == "7"


def test_threads_and_policy_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    assert described(capsys, "--threads", "3")["threads"]["threads"] == "3"
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WEFT_NATIVE": "0"}, "off (WEFT_NATIVE=0)"),
        ({"WEFT_ISA": "z80"}, "not available: WEFT_ISA is 'z80'. Choose one of: "),
    ],
)
def test_kernels_that_cannot_be_used_are_a_line_of_the_report(
    variables: dict[str, str], expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft", "doctor"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert expected in done.stdout


def test_one_openmp_library_is_loaded() -> None:
    """The kernels use torch's: a second one would have threads of its own."""
    native()
    assert len(openmp_libraries()) == 1
