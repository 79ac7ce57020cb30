"""The goals for long sequences: 8 heads of 64, batch 1, two threads, forward and backward."""

import pytest
import torch

from weft.bench.attention import AttentionWorkload, make_inputs, peaks, run
from weft.bench.measure import in_children
from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS
from weft.nn.attention.masks import Causal

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

SHORT, LONG = 4096, 16384


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def best(tasks: list[AttentionWorkload], rounds: int) -> list[float]:
    """The least seconds of each task, in turns: what else runs on the machine only adds. Short
    tasks take more turns, until they ran about as long as the long ones."""
    run(AttentionWorkload("sparse", "window", 1024))
    result: list[list[float]] = [[] for _ in tasks]
    for _ in range(rounds):
        for seconds, task in zip(result, tasks, strict=True):
            turns = 1 if task.pattern == "causal" else 4
            seconds += [run(task)[1] for _ in range(turns)]
    return [min(seconds) for seconds in result]


def test_a_window_is_eight_times_faster_than_full_attention_and_linear_in_the_length():
    tasks = [
        AttentionWorkload("flash", "causal", LONG),
        AttentionWorkload("sparse", "window", LONG),
        AttentionWorkload("sparse", "window", SHORT),
    ]
    full, window, short_window = best(tasks, rounds=3)
    assert full >= 8 * window, f"full {full:.2f} s, window {window:.2f} s"
    assert window <= 5 * short_window, f"{window:.2f} s, {short_window:.2f} s at a quarter"


@pytest.mark.parametrize("kernel", ["flash", "sparse"])
def test_peak_memory_is_linear_in_the_length(kernel):
    pattern = "causal" if kernel == "flash" else "window"
    tasks = [AttentionWorkload(kernel, pattern, length) for length in (SHORT, LONG)]
    (_, short), (_, long) = in_children(tasks, peaks)
    assert long <= 5 * short, f"{long / 1e6:.0f} MB, {short / 1e6:.0f} MB at a quarter"


def test_flash_equals_the_reference_where_the_reference_fits():
    q, k, v, _ = make_inputs(AttentionWorkload("flash", "causal", 2048))
    result, expected = (
        KERNELS[name](AttentionCall(q, DenseView(k, v), Causal()))
        for name in ("flash", "reference")
    )
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
