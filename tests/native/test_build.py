"""The library is built once, whole or not at all; without it torch does the work and says so."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.native import build, library
from weft.native.library import native
from weft.native.structs import PackedStruct

ANSWERS = """
import torch
from weft.core.kv_spec import PagedView, PageLayout
from weft.nn.attention.paged_attention import paged_attention
from weft.native.attention_kernels import PagedAttentionParams
from weft.nn.linear import Linear
from weft.nn.packed_modules import pack_model
from weft.native.library import native

torch.manual_seed(0)
layer, x = Linear(6, 5), torch.randn(3, 6)
with torch.no_grad():
    expected = layer(x)
    torch.testing.assert_close(pack_model(layer)(x), expected)
number = lambda *values: torch.tensor(values, dtype=torch.int32)
layout = PageLayout(number(0, 1), number(2), number(3), number(1)[None])
view = PagedView(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8), layout)
out, lse = paged_attention(torch.randn(1, 1, 8), view, PagedAttentionParams(8**-0.5))
assert out.isfinite().all() and lse.isfinite().all()
assert native() is None
"""


def in_another_process(**environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", ANSWERS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_there_is_a_library_where_there_is_a_compiler() -> None:
    assert native() is not None
    assert native() is native()


def test_switched_off_torch_gives_the_answers_without_a_word() -> None:
    assert in_another_process(WEFT_NATIVE="0").stderr == ""


def test_without_a_compiler_torch_gives_the_answers_and_one_line_says_so(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-compiler")
    said = in_another_process(CXX=missing, WEFT_CACHE=str(tmp_path)).stderr.strip().splitlines()
    assert len(said) == 1
    assert missing in said[0]
    assert "torch does their work" in said[0]


def fake_compiler(folder: Path, command: str) -> str:
    """A compiler that has a version and then does what it is told."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake && exit\n{command}\n')
    path.chmod(0o755)
    return str(path)


def test_a_build_that_fails_leaves_nothing_and_tells_the_compilers_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "echo 'out of paper' >&2; exit 1"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.delenv("WEFT_NATIVE", raising=False)
    with caplog.at_level(logging.WARNING):
        assert library.native.__wrapped__() is None
    assert "out of paper" in caplog.text
    assert list((tmp_path / "native").iterdir()) == []


def test_a_library_is_built_once_even_when_two_begin_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the last argument is where the library goes
    script = f'echo built >> {tmp_path}/count; for last in "$@"; do :; done; echo one > "$last"'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, script))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    with ThreadPoolExecutor(2) as two:
        paths = {job.result() for job in [two.submit(build.library_path) for _ in range(2)]}
    assert len(paths) == 1
    counted = (tmp_path / "count").read_text()
    assert build.library_path() in paths
    assert (tmp_path / "count").read_text() == counted
    assert list((tmp_path / "native").iterdir()) == list(paths)


def test_another_source_or_compiler_is_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*build.SOURCES, *build.HEADERS):
        (tmp_path / name).write_bytes((build.HERE / name).read_bytes())
    before = build.fingerprint("g++")
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.fingerprint("g++") == before
    assert build.fingerprint(fake_compiler(tmp_path, "exit")) != before
    (tmp_path / "tile.h").write_text("other")
    assert build.fingerprint("g++") != before


def test_every_source_of_the_folder_counts() -> None:
    here = {path.name for path in build.HERE.iterdir() if path.suffix in (".cpp", ".h")}
    assert here == {*build.SOURCES, *build.HEADERS}


def test_a_structure_of_another_size_is_noticed() -> None:
    with pytest.raises(AssertionError, match=f"{ctypes.sizeof(PackedStruct)} bytes here and 7"):
        library.check_size(PackedStruct, 7)
