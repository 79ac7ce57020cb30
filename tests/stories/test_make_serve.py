"""`make serve` with a model that exists: it is served, and SmolLM2 is mentioned."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.engine.tiny import tiny_folder

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_serve_serves_the_demo_model(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    tiny_folder(tmp_path / "runs" / "demo", "encoder-decoder")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    weft = tmp_path / "bin" / "weft"
    weft.write_text(f'#!/bin/sh\nexec {sys.executable} -m weft "$@"\n')
    weft.chmod(0o755)
    (tmp_path / "stamp").touch()
    command = ["make", "serve", "BIN=bin", "STAMP=stamp", "OPTIONS=--port 0 --cache 0.05"]
    environ = {**os.environ, "WEFT_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that make and the server get the signal
    )
    lines = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            match = re.match(r"ready on (\S+),", line)
            if match:
                body = {"model": "demo", "prompt": "the cat", "stream": False}
                answer = httpx.post(f"{match[1]}/api/generate", json=body, timeout=60)
                assert answer.status_code == 200 and answer.json()["done"]
                os.killpg(process.pid, signal.SIGINT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process.stderr.close()
    text = "".join(lines)
    assert "weft serve runs/demo --port 0" in text and "ready on" in text
    assert "SmolLM2 is not pulled" in text
    assert "Training it takes" not in text
