"""Random models and requests have the same bits however they are served (determinism.py). Long
campaigns: tests/soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.native.library import native

from .determinism import check_case, run_case, saved_cases

FAST_SEEDS, NUM_WITHOUT_KERNELS = range(3, 8), 30


@pytest.mark.parametrize("seed", FAST_SEEDS)
def test_a_random_case(seed: int) -> None:
    run_case(seed)


@pytest.mark.parametrize("index", range(len(saved_cases())))
def test_a_case_that_has_failed_before(index: int) -> None:
    check_case(saved_cases()[index])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(native() is None, reason="the other tests run without kernels already")
def test_random_cases_without_the_compiled_kernels() -> None:
    code = "from tests.engine.determinism import run_case; "
    code += f"[run_case(seed) for seed in range({NUM_WITHOUT_KERNELS})]"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WEFT_NATIVE": "0"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
