"""The pages of docs/how-to: their changes apply, in any order and all together, and the components
that they add work. On a copy of the package, so that the tables of this one stay as they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.how_to import NEW_KINDS, Page, apply, read_page

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "how-to"
PAGES = {
    path.stem: read_page(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.md"))
    if path.name != "README.md"
}
TABLES = {
    "position": "src/weft/nn/positions/encodings.py",
    "attention-heads": "src/weft/nn/attention/heads.py",
    "norm": "src/weft/nn/norm.py",
    "feed-forward": "src/weft/nn/feedforward.py",
    "sampler": "src/weft/sampling/logits_processors.py",
    "family": "src/weft/checkpoint/families/__init__.py",
    "kernel": "src/weft/nn/attention/kernels/__init__.py",
}
TESTED = [
    "tests/contracts/test_models.py",
    "tests/nn/positions/test_contract.py",
    "tests/nn/test_norm.py",
    "tests/nn/test_feedforward.py",
    "tests/nn/attention/test_kernels.py",
    "tests/sampling/test_logits_processors.py",
    "tests/checkpoint/families/test_contract.py",
    "tests/test_tree.py",
    "tests/test_imports.py",
]
"""The tests that the pages name, and those of the structure of the package."""
IGNORED = shutil.ignore_patterns("__pycache__", ".*", "node_modules")


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package of a copy, and its tests or else these."""
    path = os.pathsep.join([str(folder / "src"), str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The error, or None, of each program and contract, with the changes of all pages."""
    copy = tmp_path_factory.mktemp("how_to")
    shutil.copytree(ROOT / "src", copy / "src", ignore=IGNORED)
    for page in PAGES.values():
        apply(page, copy, "src/")
    run = python(copy, "-m", "tests.how_to", str(FOLDER))
    assert run.returncode == 0, run.stderr
    errors: dict[str, str | None] = json.loads(run.stdout.splitlines()[-1])
    return errors


def test_there_is_a_page_for_each_part_of_a_model() -> None:
    assert PAGES.keys() == TABLES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_the_program_of_a_page_runs(name: str, outcomes: dict[str, str | None]) -> None:
    assert len(PAGES[name].programs) == 1
    assert outcomes[name] is None, outcomes[name]


@pytest.mark.parametrize("name", NEW_KINDS)
def test_a_model_with_the_component_keeps_the_contracts(
    name: str, outcomes: dict[str, str | None]
) -> None:
    error = outcomes[f"{name}, contracts"]
    assert error is None, error


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_a_page_adds_an_entry_to_its_table_and_changes_a_test(name: str, page: Page) -> None:
    changed = {path for path, _, _ in page.changes}
    assert TABLES[name] in changed and any(path.startswith("tests/") for path in changed)
    for path, old, _ in page.changes:
        assert (ROOT / path).read_text(encoding="utf-8").count(old) == 1, f"{path}:\n{old}"
    assert not any((ROOT / path).exists() for path in page.new_files)


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_the_pages_are_linked(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = set(re.findall(r"how-to/([\w-]+)\.md", text))
    assert links - {"README"} == PAGES.keys()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tests_and_linters_pass_with_all_components(tmp_path: Path) -> None:
    for name in ("src", "tests", "docs", "recipes", "deploy", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=IGNORED)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    for page in PAGES.values():
        apply(page, tmp_path)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check", "src", "tests"], ["check", "src", "tests"]):
        done = subprocess.run(
            [*ruff, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
    run = python(tmp_path, "-m", "pytest", "-q", "-m", "not slow", *TESTED)
    assert run.returncode == 0, run.stdout
    run = python(tmp_path, "-m", "mypy", "--no-incremental")
    assert run.returncode == 0, run.stdout
