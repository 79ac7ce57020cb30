"""A wheel runs with its prebuilt kernels where there is no compiler (`make test-native`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tiny import tiny_folder
from weft.native.compiler import VARIANTS

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
LIBRARY = """
from weft.native.compiler import library_path
from weft.native.library import native
assert native() is not None
print(library_path())
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without access to the network and installed into a folder."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the installed wheel, an empty cache and no compiler on PATH."""
    (folder / "no-programs").mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "WEFT_ISA", "CI")}
    environment |= {
        "PATH": str(folder / "no-programs"),
        "PYTHONPATH": str(installed),
        "WEFT_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=True
    )


def test_it_contains_a_library_for_each_variant(installed: Path) -> None:
    names = [path.stem.rpartition("-")[0] for path in (installed / "weft/native").rglob("*.so")]
    assert sorted(names) == sorted(f"weft-{variant.name}" for variant in VARIANTS)


def test_weft_generate_runs_with_the_prebuilt_kernels(installed: Path, tmp_path: Path) -> None:
    path = Path(run(installed, tmp_path, "-c", LIBRARY).stdout.strip())
    assert path.parent == installed / "weft" / "native" / "prebuilt"
    best = next(variant for variant in VARIANTS if not variant.missing_features())
    assert path.stem.rpartition("-")[0] == f"weft-{best.name}"

    model = tiny_folder(tmp_path / "model", "decoder")
    arguments = ("generate", str(model), "the cat", "--max-tokens", "5", "--json")
    done = run(installed, tmp_path, "-m", "weft", *arguments)
    assert json.loads(done.stdout)["tokens"]
    assert done.stderr == "", "neither compiled nor replaced by torch"
    assert not (tmp_path / "cache" / "native").exists()
