"""The library is prebuilt or compiled once, complete or not at all; without it torch computes."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft.core.errors import UsageError
from weft.native import compiler, library
from weft.native.compiler import NATIVE, VARIANTS, Variant, is_intact, library_path
from weft.native.library import native

TORCH_ONLY = """
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
    environment = {**os.environ, "WEFT_ISA": "", **environment}
    command = [sys.executable, "-c", TORCH_ONLY]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_there_is_a_library_where_there_is_a_compiler() -> None:
    assert native() is not None
    assert native() is native()


def test_switched_off_torch_computes_without_a_message() -> None:
    assert in_another_process(WEFT_NATIVE="0").stderr == ""


def test_another_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NATIVE", "off")
    with pytest.raises(UsageError, match="WEFT_NATIVE is 'off': it must be 0 .* or 1"):
        library.native.__wrapped__()


def test_without_a_compiler_one_line_tells_the_cost_and_the_remedy(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-compiler")
    stderr = in_another_process(CXX=missing, WEFT_CACHE=str(tmp_path)).stderr
    (line,) = stderr.strip().splitlines()
    assert missing in line
    assert "generation is more than 10 times slower and uses more than twice the memory" in line
    assert "Install g++" in line


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, no prebuilt libraries, no forced variant."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "PREBUILT_FOLDER", tmp_path / "prebuilt")
    for name in ("WEFT_NATIVE", "WEFT_ISA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "native"


def fake_compiler(folder: Path, command: str) -> str:
    """A compiler that prints a version, and otherwise runs `command`."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake && exit\n{command}\n')
    path.chmod(0o755)
    return str(path)


LINKER = """
for last in "$@"; do :; done
[ "$1" = -shared ] && echo linked >> {log}
echo binary > "$last"
"""
"""Writes the output file, which is the last argument."""


def fake_linker(folder: Path) -> tuple[str, Path]:
    log = folder / "log"
    log.touch()
    return fake_compiler(folder, LINKER.format(log=log)), log


def test_a_failed_compilation_leaves_no_file_and_reports_the_last_line(
    tmp_path: Path,
    empty_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "echo 'out of paper' >&2; exit 1"))
    with caplog.at_level(logging.WARNING):
        assert library.native.__wrapped__() is None
    assert "out of paper" in caplog.text
    assert list(empty_cache.iterdir()) == []


@pytest.mark.parametrize("problem", ["full", "a file"])
def test_a_cache_folder_that_cannot_be_written_is_named_with_the_remedy(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    if problem == "full":
        usage = compiler.shutil.disk_usage(tmp_path)._replace(free=5 << 10)
        monkeypatch.setattr(compiler.shutil, "disk_usage", lambda path: usage)
        reason = "has 5 kB of free space, compiling needs 8192"
    else:
        cache.write_text("")
        reason = "Not a directory"
    monkeypatch.setenv("WEFT_CACHE", str(cache))
    monkeypatch.setattr(compiler, "PREBUILT_FOLDER", tmp_path)
    assert native.__wrapped__() is None
    line = caplog.records[-1].getMessage()
    assert reason in line and str(cache / "native") in line, line
    assert line.endswith(
        "Free some space there, or set WEFT_CACHE to a folder that can be written."
    )


def test_a_library_is_compiled_once_with_its_path_and_its_duration(
    tmp_path: Path,
    empty_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command, log = fake_linker(tmp_path)
    monkeypatch.setenv("CXX", command)
    path = library_path()
    assert library_path() == path
    assert log.read_text() == "linked\n"
    begin, end = (record.getMessage() for record in caplog.records)
    assert "compiling the native kernels for this machine" in begin and str(path) in begin
    assert re.fullmatch("compiled the native kernels in [0-9]+ s", end)


def test_two_processes_that_compile_at_once_leave_one_complete_library(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, log = fake_linker(tmp_path)
    monkeypatch.setenv("CXX", command)
    with ThreadPoolExecutor(2) as pool:
        paths = {job.result() for job in [pool.submit(library_path) for _ in range(2)]}
    (path,) = paths
    assert is_intact(path)
    assert list(empty_cache.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 5, 30, -1])
def test_a_truncated_library_is_compiled_again(
    kept: int, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, log = fake_linker(tmp_path)
    monkeypatch.setenv("CXX", command)
    path = library_path()
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    assert not is_intact(path)
    assert library_path() == path
    assert path.read_bytes() == content
    assert log.read_text() == "linked\n" * 2


def test_another_source_compiler_or_variant_is_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    for path in compiler.SOURCE_FOLDER.iterdir():
        (sources / path.name).write_bytes(path.read_bytes())
    before = compiler.fingerprint("g++", NATIVE)
    names = {compiler.fingerprint("g++", variant) for variant in VARIANTS}
    assert len(names | {before}) == len(VARIANTS) + 1
    monkeypatch.setattr(compiler, "SOURCE_FOLDER", sources)
    assert compiler.fingerprint("g++", NATIVE) == before
    assert compiler.fingerprint(fake_compiler(tmp_path, "exit"), NATIVE) != before
    (sources / "tile.h").write_text("other")
    assert compiler.fingerprint("g++", NATIVE) != before


def prebuild(folder: Path, *variants: Variant) -> dict[str, Path]:
    """Files as a wheel has them, but without code."""
    folder.mkdir()
    paths = {v.name: folder / f"weft-{v.name}-0123456789abcdef.so" for v in variants}
    for path in paths.values():
        path.write_bytes(b"binary")
        compiler.append_checksum(path)
    return paths


def test_the_best_prebuilt_library_that_the_processor_can_run_is_chosen(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = prebuild(compiler.PREBUILT_FOLDER, *VARIANTS)
    monkeypatch.setenv("CXX", "/no/compiler")
    for variant in VARIANTS:
        features = variant.features
        monkeypatch.setattr(compiler, "processor_features", lambda features=features: features)
        assert library_path() == paths[variant.name]
    monkeypatch.setenv("WEFT_ISA", "x86-64")
    assert library_path() == paths["x86-64"]


def test_a_damaged_prebuilt_library_is_passed_over_with_a_warning(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    features = VARIANTS[0].features
    monkeypatch.setattr(compiler, "processor_features", lambda: features)
    paths = prebuild(compiler.PREBUILT_FOLDER, *VARIANTS)
    first, second = (paths[variant.name] for variant in VARIANTS[:2])
    first.write_bytes(first.read_bytes()[:-1])
    assert library_path() == second
    assert f"damaged and not used: {first}" in caplog.text


def test_an_unknown_or_unusable_variant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_NATIVE", raising=False)
    monkeypatch.setenv("WEFT_ISA", "x86-64-v9")
    with pytest.raises(UsageError, match=r"WEFT_ISA is 'x86-64-v9'. Choose one of: x86-64-v4-vnni"):
        library.native.__wrapped__()
    monkeypatch.setenv("WEFT_ISA", "x86-64-v4")
    monkeypatch.setattr(compiler, "processor_features", lambda: frozenset(("avx2", "fma")))
    with pytest.raises(UsageError, match=r"'x86-64-v4', but this processor lacks abm, avx512bw"):
        library.native.__wrapped__()


def test_a_library_links_no_openmp(tmp_path: Path) -> None:
    """Its symbols come from torch's, so that there is one pool of threads."""
    path = native_path()
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    assert "NEEDED" in dynamic.stdout
    assert "gomp" not in dynamic.stdout and "RUNPATH" not in dynamic.stdout


def native_path() -> Path:
    assert native() is not None
    return library_path()
