"""How long SmolLM2 takes from a GGUF file to ready, and how much memory: in a process of its own,
where nothing is imported or cached yet but torch.

    processor time    at most 3 s of both cores together, so that it is at most 3 s by the clock
                      wherever a core is free (a busy machine stretches the clock, not this)
    memory            at most 0.4 times the float32 weights above the interpreter with torch: they
                      stay in the file's few bits, and the tokenizer is a third of the rest

The same figures for any model: python -m tests.stories.test_loading MODEL
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
    """VmHWM: the most memory so far; VmRSS: that of now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(model: str) -> dict[str, float]:
    """Load a model in this process; seconds and megabytes."""
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
@pytest.mark.timeout(600)
def test_smollm2_is_ready_in_three_seconds_and_less_than_half_the_memory_of_its_floats() -> None:
    path = pull("smollm2", print)
    tries = [fresh(path) for _ in range(3)]
    best = min(tries, key=lambda told: told["processor_seconds"])
    assert best["processor_seconds"] <= 3.0, tries
    assert max(told["peak_mb"] / told["weights_mb"] for told in tries) <= 0.4, tries


def fresh(path: Path) -> dict[str, float]:
    """`measure` in a new process with two threads, as on two cores."""
    command = [sys.executable, "-m", "tests.stories.test_loading", str(path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "WEFT_CHECK": "0"},
    )  # fmt: skip
    told: dict[str, float] = json.loads(done.stdout)
    return told


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
