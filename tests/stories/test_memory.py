"""Peak memory until the first token: the weights are in memory only once.

Measured in a new process, above the interpreter with Weft imported, as a multiple of the float32
weights (150 MB):

    Weft folder           1.3     float weights are read, packed and freed layer by layer
    Hugging Face folder   1.35    the same, and the parts of the weight that is being combined
    GGUF in 8 bits        0.6     a quarter for the weights, and the engine itself

To measure any model: python -m tests.stories.test_memory MODEL
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.test_loading import kilobytes
from weft.checkpoint.formats import convert
from weft.checkpoint.weft_folder import Checkpoint, save_folder
from weft.models.build import build_model
from weft.models.config import ModelConfig

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

CONFIG = {
    "kind": "decoder",
    "vocab_size": 8000,
    "width": 512,
    "num_layers": 10,
    "max_len": 64,
    "attention": {"num_heads": 8},
    "position": {"kind": "rotary"},
    "feedforward": {"kind": "swiglu", "width": 1536, "bias": False},
    "norm": {"kind": "rmsnorm"},
}


def measure(model: str) -> dict[str, float]:
    """Load a model in this process, generate one token, and return megabytes."""
    import weft
    import weft.engine.loaded_model

    before = kilobytes("VmRSS")
    loaded = weft.load(model)
    loaded_peak = kilobytes("VmHWM") - before
    loaded.generate("the cat", max_tokens=1)
    weights = sum(weight.numel() for weight in loaded.model.parameters()) * 4
    return {
        "weights_mb": weights / 1e6,
        "loaded_peak_mb": loaded_peak * 1024 / 1e6,
        "first_token_peak_mb": (kilobytes("VmHWM") - before) * 1024 / 1e6,
    }


def measure_in_new_process(path: Path) -> dict[str, float]:
    """`measure` in a new process."""
    command = [sys.executable, "-m", "tests.stories.test_memory", str(path)]
    env = {**os.environ, "OMP_NUM_THREADS": "2", "WEFT_CHECK": "0"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True, env=env
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # imported here, because the measured process imports this file too
    from tests.checkpoint.gguf.tiny import tokenizer

    path = tmp_path_factory.mktemp("models") / "weft"
    model = build_model(ModelConfig.from_dict(CONFIG)).eval()
    save_folder(path, Checkpoint(model, tokenizer(), "lm"))
    return path


def test_a_weft_folder_is_never_in_memory_twice(folder: Path) -> None:
    figures = measure_in_new_process(folder)
    assert figures["weights_mb"] > 150
    assert figures["first_token_peak_mb"] <= 1.3 * figures["weights_mb"], figures


def test_a_hugging_face_folder_is_never_in_memory_twice(folder: Path) -> None:
    convert(folder, folder.parent / "hf", "hf")
    figures = measure_in_new_process(folder.parent / "hf")
    assert figures["first_token_peak_mb"] <= 1.35 * figures["weights_mb"], figures


def test_quantized_weights_never_become_floats(folder: Path) -> None:
    convert(folder, folder.parent / "x.gguf", "gguf", dtype="q8_0")
    figures = measure_in_new_process(folder.parent / "x.gguf")
    assert figures["first_token_peak_mb"] <= 0.6 * figures["weights_mb"], figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
