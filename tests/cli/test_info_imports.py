"""`weft info` reads headers: it imports no torch, whose import alone takes longer than it may."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.checkpoint_bases import base_folder, model_path

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
BASES = ["llama", "deepseek_v3", "gemma3 gguf", "deepseek gguf", "weft"]
PICKLES = ["t5 bin", "bert bin shards"]
UNWANTED = ["torch", "gguf", "transformers", "huggingface_hub"]
MAX_SECONDS = 0.6
PROGRAM = """
import json, sys
from weft.cli.app import main
codes = [main(["info", path, *json.loads(sys.argv[3])]) for path in json.loads(sys.argv[1])]
found = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps([codes, found]), file=sys.stderr)
"""


def run(paths: list[Path], unwanted: list[str], *options: str) -> tuple[list[int], list[str]]:
    """Exit codes and unwanted modules of a process that describes some files."""
    arguments = [json.dumps(value) for value in (list(map(str, paths)), unwanted, options)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    codes, found = json.loads(done.stderr.splitlines()[-1])
    return codes, found


def path_of(name: str) -> Path:
    return RECIPE if name == "recipe" else model_path(base_folder(name))


def test_no_file_needs_torch_or_another_large_library() -> None:
    paths = [path_of(name) for name in ("recipe", *BASES)]
    assert run(paths, UNWANTED) == ([0] * len(paths), [])
    assert run(paths, UNWANTED, "--json", "--compare", "heads") == ([0] * len(paths), [])


def test_hashes_are_compared_without_torch() -> None:
    assert run([path_of("weft")], UNWANTED, "--verify") == ([0], [])


def test_files_of_torch_need_torch_but_not_its_compiler() -> None:
    paths = [path_of(name) for name in PICKLES]
    unwanted = ["torch._dynamo", "torch._inductor", *UNWANTED[1:]]
    assert run(paths, unwanted) == ([0] * len(paths), [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recipe", *BASES])
def test_a_file_is_described_in_0_6_seconds(name: str) -> None:
    command = [sys.executable, "-m", "weft", "info", str(path_of(name))]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # processor time: the process has one thread, and other programs may use the CPUs
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < MAX_SECONDS, seconds
