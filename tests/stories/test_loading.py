"""Time and memory to load SmolLM2 from a GGUF file, in a new process with only torch imported.

    CPU time    at most 3 s, summed over both cores: wall-clock time depends on the load of the
                machine
    memory      peak above the interpreter with torch: at most 0.4 times the float32 weights, as
                weights stay quantized; the tokenizer is a third of the rest

To measure any model: python -m tests.stories.test_loading MODEL
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.checkpoint.hub import pull


def kilobytes(name: str) -> int:
    """A value of /proc/self/status. VmHWM: peak resident memory; VmRSS: current."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(model: str) -> dict[str, float]:
    """Load a model in this process and return seconds and megabytes."""
    import torch

    before = kilobytes("VmRSS")
    clock, processor = time.perf_counter(), time.process_time()
    import weft

    imported = time.process_time() - processor
    loaded = weft.load(model)
    weights = sum(weight.numel() for weight in loaded.model.parameters()) * 4
    return {
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
        "import_processor_seconds": imported,
        "peak_mb": (kilobytes("VmHWM") - before) * 1024 / 1e6,
        "weights_mb": weights / 1e6,
        "threads": torch.get_num_threads(),
    }


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_smollm2_loads_in_three_seconds_with_less_than_half_of_its_float32_memory() -> None:
    path = pull("smollm2", print)
    runs = [measure_in_new_process(path) for _ in range(3)]
    best = min(runs, key=lambda run: run["processor_seconds"])
    assert best["processor_seconds"] <= 3.0, runs
    assert max(run["peak_mb"] / run["weights_mb"] for run in runs) <= 0.4, runs


def measure_in_new_process(path: Path) -> dict[str, float]:
    """`measure` in a new process with two threads."""
    command = [sys.executable, "-m", "tests.stories.test_loading", str(path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "WEFT_CHECK": "0"},
    )  # fmt: skip
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
