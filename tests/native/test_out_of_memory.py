"""Each allocation of the native library fails once: a MemoryError, and afterwards the same results.

A child process replaces `operator new` by LD_PRELOAD (failing_new.cpp), and lets it fail inside the
library only: the first allocation of a call, then the second, and so on.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from weft.native.library import native

pytestmark = [
    pytest.mark.skipif(native() is None or shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(
        os.environ.get("WEFT_ISA") == "sanitize", reason="the sanitizer has its own operator new"
    ),
]
ROOT = Path(__file__).parents[2]
KERNELS = ["int8 product", "top k of int8", "short attention", "rdrop"]
ENGINES = ["layers", "decode steps", "greedy"]
MAX_TRIES = 30
"""Threads take the tasks of a loop as they come. If one thread takes all of them, the other
allocates nothing, and a run has fewer allocations than the one that was counted."""

MIN_REACHED = 0.9
"""Share of the counted allocations that fail when there are two threads."""


class FailingLibrary:
    """The functions of the library; `operator new` counts, and fails, while one of them runs."""

    def __init__(self, lib: Any, shim: ctypes.CDLL) -> None:
        self.lib, self.shim = lib, shim

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.lib, name)

        def call(*arguments: Any) -> Any:
            self.shim.set_active(1)
            try:
                return function(*arguments)
            finally:
                self.shim.set_active(0)

        return call


def in_new_thread(compute: Callable[[], Any]) -> Any:
    """Memory that the library keeps belongs to a thread: a new one allocates everything again."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(compute())
        except MemoryError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def scenarios() -> dict[str, Callable[[], Any]]:
    """Calls of every function that allocates, and engines that use them; results as plain lists."""
    import torch

    from tests.engine.asking import beam_search, generate
    from tests.engine.tiny import tiny
    from tests.native.test_int8_activations import INPUTS, rounded_weight
    from weft.native.attention_kernels import NativeShortAttention
    from weft.native.kernels import linear, linear_top_k, rdrop_loss_

    torch.manual_seed(0)
    weight, _ = rounded_weight(8)
    x, short = torch.randn(13, INPUTS), torch.randn(3, 1, 2, 5, 16)
    p, q, targets = torch.randn(3, 40), torch.randn(3, 40), torch.tensor([1, 2, 3])
    decoder, translator = tiny("decoder").model, tiny().model

    def attention() -> Any:
        with torch.inference_mode():
            return NativeShortAttention.apply(*short, None, 0.3)[0].tolist()

    def loss() -> Any:
        with torch.inference_mode():
            losses = rdrop_loss_(p.clone(), q.clone(), targets, 0.1, 0.5)
            return None if losses is None else losses.tolist()

    def beams(width: int) -> Any:
        found = beam_search(translator, [[1, 5]] * 3, 6, 2, width, sources=[[7, 8, 9], [4], [5, 6]])
        return [[(one.ids, one.score) for one in search] for search in found]

    with torch.inference_mode():
        return {
            "int8 product": lambda: linear(x, weight).tolist(),
            "top k of int8": lambda: linear_top_k(x, weight, None, 3, []).ids_NK.tolist(),
            "short attention": attention,
            "rdrop": loss,
            "layers": lambda: generate(decoder, [[5, 9, 30], [7]], 3),
            "decode steps": lambda: beams(3),
            "greedy": lambda: beams(1),
        }


@dataclass
class Counts:
    """What the failures in one scenario led to."""

    allocations: int
    failed: int = 0
    """Allocations that failed; the others were not reached in MAX_TRIES runs."""
    errors: int = 0
    wrong: int = 0


def fail_everywhere(path: str, names: list[str]) -> dict[str, dict[str, int]]:
    """The counts of some scenarios."""
    shim, library = ctypes.CDLL(path), native()
    assert library is not None
    object.__setattr__(library, "lib", FailingLibrary(library.lib, shim))
    computed = scenarios()
    return {name: asdict(fail_each(shim, computed[name])) for name in names}


def fail_each(shim: ctypes.CDLL, compute: Callable[[], Any]) -> Counts:
    """Let each allocation of a computation fail, one per run."""
    shim.fail_at(0)
    expected = in_new_thread(compute)
    counts = Counts(shim.allocations())
    for failing in range(1, counts.allocations + 1):
        result, has_failed = run_until_failed(shim, compute, failing)
        is_error = isinstance(result, MemoryError)
        counts.failed += has_failed
        counts.errors += is_error
        counts.wrong += result != expected and not (is_error and has_failed)
        shim.fail_at(0)
        counts.wrong += in_new_thread(compute) != expected
    return counts


def run_until_failed(
    shim: ctypes.CDLL, compute: Callable[[], Any], failing: int
) -> tuple[Any, bool]:
    """The result of a run that reached an allocation, which failed; or of the last run."""
    for _ in range(MAX_TRIES):
        shim.fail_at(failing)
        result = in_new_thread(compute)
        if shim.allocations() >= failing:
            return result, True
    return result, False


@pytest.mark.parametrize(
    ("names", "threads"),
    [
        ([*KERNELS, "layers"], 1),
        pytest.param([*KERNELS, *ENGINES], 2, marks=pytest.mark.slow),
    ],
)
def test_each_allocation_that_fails_is_an_error_and_changes_nothing(
    names: list[str], threads: int, tmp_path: Path
) -> None:
    shim = tmp_path / "failing_new.so"
    source = Path(__file__).with_name("failing_new.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", str(source), "-o", str(shim)], check=True)
    code = (
        "import json, sys; from tests.native.test_out_of_memory import fail_everywhere\n"
        "print(json.dumps(fail_everywhere(sys.argv[1], sys.argv[2:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(shim), *names],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    for name, counts in found.items():
        assert counts["failed"] > 0 and counts["wrong"] == 0, found
        # the engine repeats a step that failed, so its requests need not notice
        assert counts["errors"] == counts["failed"] or name in ENGINES, found
        # with two threads, one of them may take all tasks in every try
        least = counts["allocations"] if threads == 1 else MIN_REACHED * counts["allocations"]
        assert counts["failed"] >= least, found
    print(found)
