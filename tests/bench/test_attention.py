"""Bench of attention kernels: workloads, rows, peaks and the report, at tiny lengths."""

import itertools
import json

import pytest
import torch

from weft.bench import measure, plots
from weft.bench.attention import (
    PASSES,
    PATTERNS,
    AttentionTiming,
    AttentionWorkload,
    make_inputs,
    peaks,
    run,
    to_json,
    workloads,
)
from weft.bench.attention import measure as measure_rows
from weft.core.errors import ConfigError, UsageError
from weft.nn.attention.kernels import KERNELS


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_runs_every_pattern(kernel, pattern):
    forward, both = run(AttentionWorkload(kernel, pattern, 40, heads=2, head_size=8))
    assert 0 < forward < both


def test_the_same_seed_gives_the_same_inputs():
    one, same = (
        make_inputs(AttentionWorkload("flash", "causal", 16)),
        make_inputs(AttentionWorkload("sparse", "window", 16)),
    )
    other = make_inputs(AttentionWorkload("flash", "causal", 16, seed=1))
    assert all(a.equal(b) for a, b in zip(one, same, strict=True))
    assert not one[0].equal(other[0])


def test_the_reference_is_left_out_where_its_scores_do_not_fit():
    made = workloads(["reference", "flash"], ["causal"], [64, 65536])
    assert [(task.kernel, task.length) for task in made] == [
        ("reference", 64),
        ("flash", 64),
        ("flash", 65536),
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["flsh"], ["causal"], [64]), ConfigError, "'flsh' is not a known attention kernel"),
        ((["flash"], ["windw"], [64]), ConfigError, "'windw' is not a known attention pattern"),
        ((["flash"], ["causal"], [0]), UsageError, "length is 0"),
        ((["reference"], ["causal"], [65536]), UsageError, "nothing to measure"),
        ((["flash"], [], [64]), UsageError, "nothing to measure"),
    ],
)
def test_workloads_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        workloads(*arguments)


def test_sizes_below_one_are_refused():
    with pytest.raises(UsageError, match="heads is 0"):
        workloads(["flash"], ["causal"], [64], heads=0)


def test_tasks_take_turns_and_the_median_counts():
    order, ticks, values = [], itertools.count(), iter([1.0, 10.0, 5.0, 30.0, 2.0, 20.0])

    def run(task):
        order.append(task)
        return (next(values), float(next(ticks)))

    steps = []
    assert measure.measure_alternately(["a", "b"], run, 3, steps.append) == [
        [2.0, 2.0],
        [20.0, 3.0],
    ]
    assert order == ["a", "b"] * 3 and steps == [1] * 6


def test_rows_hold_seconds_and_bytes_measured_in_a_child():
    length = 512
    tasks = workloads(
        ["reference", "flash"], ["causal"], [length], heads=4, head_size=32, threads=1
    )
    threads = torch.get_num_threads()
    actual = measure_rows(tasks, repeats=1)
    assert torch.get_num_threads() == threads
    assert [(row.kernel, row.passed) for row in actual] == [
        (kernel, name) for kernel in ("reference", "flash") for name in PASSES
    ]
    assert all(row.seconds > 0 and row.peak_bytes > 0 for row in actual)
    by = {(row.kernel, row.passed): row for row in actual}
    scores = 4 * length**2 * 4
    assert by["reference", PASSES[1]].peak_bytes > scores > by["flash", PASSES[1]].peak_bytes


def test_peaks_count_at_least_the_results():
    (actual,) = measure.in_children([AttentionWorkload("flash", "causal", 4096, threads=1)], peaks)
    numbers = 4096 * 8 * 64 * 4
    assert actual[0] >= 0.9 * numbers and actual[1] >= 3.6 * numbers


ROWS = [
    AttentionTiming("flash", "causal", length, name, seconds, 1000 * length)
    for length, seconds in ((256, 0.1), (64, 0.01))
    for name in PASSES
]


def test_json_has_the_promised_keys_and_names_the_machine():
    result = json.loads(
        json.dumps(to_json(ROWS, AttentionWorkload("flash", "causal", 64, threads=2), repeats=3))
    )
    assert set(result["rows"][0]) == {
        "kernel",
        "pattern",
        "length",
        "pass",
        "seconds",
        "peak_bytes",
    }
    assert result["machine"]["torch"] == torch.__version__ and result["machine"]["threads"] == 2
    assert result["settings"]["seed"] == 0 and result["settings"]["heads"] == 8


def test_the_table_has_a_line_for_each_kernel_pattern_and_length():
    assert plots.attention_table(ROWS) == [
        ["flash", "causal", 256, 0.1, 0.1, 0.256],
        ["flash", "causal", 64, 0.01, 0.01, 0.064],
    ]
    assert len(plots.ATTENTION_COLUMNS) == 6


def test_a_plot_has_a_line_for_each_kernel_and_pattern(tmp_path):
    other = [AttentionTiming("sparse", "window", row.length, row.passed, 0.02, 5) for row in ROWS]
    path = tmp_path / "rows.svg"
    plots.plot_attention([*ROWS, *other], path)
    drawn = path.read_text()
    assert drawn.lstrip().startswith("<?xml") and len(drawn) > 1000
    lengths = [row.length for row in plots.attention_series(ROWS)["flash", "causal"]]
    assert lengths == [64, 256]


def test_a_plot_of_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match="rows.xyz.*ends in .png"):
        plots.plot_attention(ROWS, tmp_path / "rows.xyz")


def test_a_plot_without_matplotlib_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"weft\[bench\]"):
        plots.plot_attention(ROWS, tmp_path / "rows.png")
