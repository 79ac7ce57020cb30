"""`weft info` reads headers: it imports no torch, whose import alone takes longer than it may."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from tests.soak.checkpoint_bases import VOCAB_SIZE, base_folder, model_path
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.pickle_header import BIN_FILE

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
BASES = ["llama", "deepseek_v3", "gemma3 gguf", "deepseek gguf", "weft"]
PICKLES = ["t5 bin", "bert bin shards", "bart bin legacy", "fairseq"]
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
    paths = [path_of(name) for name in ("recipe", *BASES, *PICKLES)]
    assert run(paths, UNWANTED) == ([0] * len(paths), [])
    assert run(paths, UNWANTED, "--json", "--compare", "heads") == ([0] * len(paths), [])


def test_hashes_are_compared_without_torch() -> None:
    assert run([path_of("weft")], UNWANTED, "--verify") == ([0], [])


def test_pickles_with_other_contents_need_torch_but_not_its_compiler(tmp_path: Path) -> None:
    folder = shutil.copytree(path_of("t5 bin"), tmp_path / "t5")
    tensors = torch.load(folder / BIN_FILE)
    tensors["extra"] = torch.zeros(1).expand(3)  # a stride of 0
    torch.save(tensors, folder / BIN_FILE)
    unwanted = ["torch._dynamo", "torch._inductor", *UNWANTED[1:]]
    codes, found = run([folder], unwanted)
    assert codes == [1] and found == []


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with as many pieces as Gemma's, and merges."""
    metadata = read_header(path_of("llama gguf")).metadata
    count = 262_144
    names = [f"piece {index}" for index in range(count)]
    path = tmp_path_factory.mktemp("gguf") / "large.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, int) and not isinstance(value, bool) and key.startswith("llama."):
            writer.add_uint32(key, 262_144 if key == "llama.vocab_size" else value)
        elif isinstance(value, float) and key.startswith("llama."):
            writer.add_float32(key, value)
    writer.add_array("tokenizer.ggml.tokens", names)
    writer.add_array("tokenizer.ggml.merges", names)
    writer.add_array("tokenizer.ggml.token_type", [1] * count)
    writer.add_array("tokenizer.ggml.scores", [0.0] * count)
    for name, info in read_header(path_of("llama gguf")).tensors.items():
        if name == "rope_freqs.weight":
            continue  # divisors that must not be 0
        shape = (count, info.shape[1]) if info.shape[0] == VOCAB_SIZE else info.shape
        writer.add_tensor(name, np.zeros(shape, np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", ["recipe", *BASES, *PICKLES, "large vocabulary"])
def test_a_file_is_described_in_0_6_seconds(name: str, large_vocabulary: Path) -> None:
    path = large_vocabulary if name == "large vocabulary" else path_of(name)
    command = [sys.executable, "-m", "weft", "info", str(path)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # processor time: the process has one thread, and other programs may use the CPUs
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < MAX_SECONDS, seconds
