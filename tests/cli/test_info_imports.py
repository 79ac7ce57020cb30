"""`weft info` reads headers: it imports neither torch's compiler nor other large libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.checkpoint_bases import base_folder, model_path

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
BASES = [
    "llama",
    "deepseek_v3",
    "t5 bin",
    "bert bin shards",
    "gemma3 gguf",
    "deepseek gguf",
    "weft",
]
UNWANTED = ["torch._dynamo", "torch._inductor", "gguf", "transformers", "huggingface_hub"]
PROGRAM = """
import json, resource, sys
def seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
import torch
start = seconds()  # of the interpreter and of torch
from weft.cli.app import main
codes = [main(["info", path, "--json"]) for path in json.loads(sys.argv[1])]
found = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps([codes, found, (seconds() - start) / start]), file=sys.stderr)
"""


def run(paths: list[Path]) -> tuple[list[int], list[str], float]:
    """Exit codes, unwanted modules, and processor time as a multiple of that of `import torch`."""
    arguments = [json.dumps(list(map(str, paths))), json.dumps(UNWANTED)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    codes, found, multiple = json.loads(done.stderr.splitlines()[-1])
    return codes, found, multiple


def test_no_file_needs_the_compiler_or_another_large_library() -> None:
    paths = [RECIPE, *(model_path(base_folder(name)) for name in BASES)]
    codes, found, _ = run(paths)
    assert codes == [0] * len(paths) and found == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recipe", *BASES])
def test_a_file_takes_little_more_than_the_import_of_torch(name: str) -> None:
    path = RECIPE if name == "recipe" else model_path(base_folder(name))
    assert min(run([path])[2] for _ in range(2)) < 0.8
