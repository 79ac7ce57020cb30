"""The commands at the top of the README and of its quick start, in a fresh clone: the environment
is created, the demo model is trained, served and asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"
HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "WEFT_CHECK")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("git", "make", "curl")),
        reason="needs git, make and curl",
    ),
]


def commands(block: str) -> list[str]:
    """The lines of a block without their comments."""
    return [re.sub(r"\s+#.*", "", line) for line in block.splitlines() if line.strip()]


def run(command: str, folder: Path) -> str:
    """Run a line as a shell would; returns its output."""
    environ = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """The address of a server that runs in the block; on a free port."""
    environ = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    server = subprocess.Popen(
        f"exec {command} --port 0",
        shell=True,
        cwd=folder,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        matches = (re.match(r"ready on (\S+),", line) for line in server.stderr)
        yield next(match[1] for match in matches if match)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        server.stderr.close()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("quickstart") / "weft"
    run(f"git clone --quiet --no-hardlinks '{ROOT}' '{folder}'", ROOT)
    yield folder
    shutil.rmtree(folder)  # its environment has about 2 GB


def test_the_commands_at_the_top_train_serve_and_ask(clone: Path) -> None:
    train, serve, ask = commands(re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)[0])
    assert train == "make run"
    run(train, clone)
    assert (clone / ".venv" / "bin" / "weft").exists()
    with serving(serve, clone) as address:
        assert ADDRESS in ask
        answer = json.loads(run(ask.replace(ADDRESS, address), clone))
    assert f'"response": "{answer["response"]}"' in README, "the README shows this answer"


def test_the_commands_of_the_quick_start_end_well(clone: Path) -> None:
    """After the first test. `make setup TORCH_INDEX=...` is tested by `make -n` (test_makefile.py):
    the environment exists by now."""
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
        for line in commands(block)
    ]
    assert "make run" in lines and len(lines) >= 5
    for line in lines:
        run(line, clone)
