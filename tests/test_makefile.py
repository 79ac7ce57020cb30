"""`make setup` chooses the build of torch that its variables ask for, and `make test-pythons` runs
every Python that works. All by `make -n`, which prints the commands and installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INDEX = re.findall(r"make setup TORCH_INDEX=(\S+)\n", (ROOT / "README.md").read_text())[0]
"""PyTorch's index of builds for the CPU, which README.md alone names."""
NOTE = "torch with CUDA is a download of 5.2 GB, unless pip is configured otherwise"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    hidden = ("TORCH", "TORCH_INDEX", "MAKEFLAGS", "MAKELEVEL")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        ["make", "-n", *arguments],
        cwd=ROOT,
        env={**environ, "PATH": path or os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def setup(tmp_path: Path, *arguments: str) -> list[str]:
    """The commands of `make setup` in a new environment, from the note or the first pip on."""
    run = make("setup", f"VENV={tmp_path / 'venv'}", *arguments)
    assert run.returncode == 0, run.stderr
    lines = [
        line.replace(f"{tmp_path}/venv/bin/python -m ", "") for line in run.stdout.splitlines()
    ]
    return [line for line in lines if line.startswith(("pip", "echo"))]


def test_setup_says_what_it_downloads_and_names_the_alternative(tmp_path: Path) -> None:
    note, torch, weft = setup(tmp_path, "PLATFORM=Linux x86_64")
    assert NOTE in note and note.endswith(">&2")
    assert "make setup TORCH_INDEX=... with the index that README.md names" in note
    assert torch == "pip install --quiet -c constraints.txt torch==2.13.0"
    assert weft.startswith("pip install --quiet -c constraints.txt -e ")


@pytest.mark.parametrize("platform", ["Darwin arm64", "Linux aarch64"])
def test_other_machines_have_no_large_build_to_warn_of(tmp_path: Path, platform: str) -> None:
    assert [line[:11] for line in setup(tmp_path, f"PLATFORM={platform}")] == ["pip install"] * 2


def test_setup_installs_torch_from_the_given_index(tmp_path: Path) -> None:
    torch, weft = setup(tmp_path, "PLATFORM=Linux x86_64", f"TORCH_INDEX={INDEX}")
    assert torch == f"pip install --quiet --no-deps --index-url {INDEX} torch==2.13.0"
    assert "index" not in weft, "everything else comes from pip's own index"


def test_cuda_is_chosen_explicitly(tmp_path: Path) -> None:
    torch, _ = setup(tmp_path, "PLATFORM=Linux x86_64", "TORCH=cuda")
    # === is compared as text, so a local build such as 2.13.0+cpu does not match
    assert torch == "pip install --quiet -c constraints.txt torch===2.13.0"


def test_an_unknown_build_is_refused() -> None:
    run = make("setup", "TORCH=rocm")
    assert run.returncode == 2
    assert "TORCH is 'rocm': the only value is cuda" in run.stderr


def test_the_makefile_and_the_constraints_agree_on_torch() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (version,) = re.findall(r"^TORCH_VERSION := (\S+)$", makefile, re.MULTILINE)
    assert f"torch=={version}" in constraints


def fake_python(folder: Path, version: str, status: int) -> None:
    """A program of that name that ends with a status."""
    path = folder / f"python{version}"
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with what the Makefile itself calls, but no Python."""
    for name in ("make", "sh", "uname", "false"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


def test_test_pythons_runs_each_version_that_works_in_its_own_environment(programs: Path) -> None:
    fake_python(programs, "3.11", 0)
    fake_python(programs, "3.12", 127)  # as pyenv's for a version that is not selected
    fake_python(programs, "3.13", 0)
    run = make("test-pythons", path=str(programs))
    assert run.returncode == 0, run.stderr
    environments = re.findall(r"^(\S+)/bin/python -m pytest", run.stdout, re.MULTILINE)
    assert environments == [".venv-3.11", ".venv-3.13"]
    assert "python3.12 is not on PATH, or does not run" in run.stderr
    assert "passed: 3.11 3.13; failed: none" in run.stderr


def test_test_pythons_fails_where_there_is_none(programs: Path) -> None:
    run = make("test-pythons", path=str(programs))
    assert run.returncode == 2 and "passed: none; failed: none" in run.stderr


def test_test_pythons_fails_where_the_tests_fail(programs: Path) -> None:
    fake_python(programs, "3.11", 0)
    run = make("test-pythons", "MAKE=false", path=str(programs))
    assert run.returncode == 2 and "passed: none; failed: 3.11" in run.stderr


def test_the_classifiers_list_the_versions_that_passed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    logs = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/log").glob("*.md"))]
    tables = [re.findall(r"^\| (3\.\d+) \| (\w+)", text, re.MULTILINE) for text in logs]
    latest = [table for table in tables if table][-1]
    assert listed == [version for version, outcome in latest if outcome == "pass"]


def test_the_readme_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sizes = dict(re.findall(r"^\| `weft\[(\w+)\]` \| .* \| (\d+) MB \|$", readme, re.MULTILINE))
    assert sizes.keys() == project["optional-dependencies"].keys()
    log = (ROOT / "docs/log/2026-11-19-installation.md").read_text(encoding="utf-8")
    measured = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \|$", log, re.MULTILINE))
    assert sizes == measured


def test_the_readme_names_the_index_beside_the_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"make setup TORCH_INDEX={INDEX}\n" in readme
