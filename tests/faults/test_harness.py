"""The harness finds saves that are known to be wrong, sees every kind of change, and counts what
the kernel counts; the save of a model has no point at which anything is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from .conftest import need_strace
from .filesystem import Loss, read_tree, replay, write_tree
from .harness import Harness
from .recorder import CHANGES, WRITES, record
from .scenarios import Scenario
from .strace_log import LogError
from .tracer import count_calls, count_changes, run_traced

NEITHER = "neither the old result nor the new one is read"
NOT_DURABLE = "not durable"
PREPARE = (("replace_file", "a", "old content", "write in place"),)


@pytest.mark.parametrize("variable", ["", "true"])
def test_without_strace_tests_are_skipped_but_fail_in_ci(variable, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", variable)
    expected = pytest.fail.Exception if variable else pytest.skip.Exception
    with pytest.raises(expected, match="strace is not installed"):
        need_strace()


def losses(harness: Harness) -> dict[str, set[str]]:
    """{problem without its details: the loss models under which it occurs}"""
    found: dict[str, set[str]] = {}
    lost = {loss.value for loss in Loss if harness.check_durable(loss)}
    if lost:
        found[NOT_DURABLE] = lost
    for crashed in harness.crashed_trees:
        for problem in harness.check_crash(crashed):
            kinds = {crash.loss.value for crash in crashed.crashes}
            found.setdefault(problem.split(":")[0], set()).update(kinds)
    return found


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("write", "sync file", "rename", "sync folder"), {}),
        (("write", "rename", "sync folder"), {NEITHER: {"data", "all"}, NOT_DURABLE: {"all"}}),
        (("write", "sync file", "rename"), {NOT_DURABLE: {"all"}}),
        (("write in place",), {NEITHER: {"kill", "data"}, NOT_DURABLE: {"all"}}),
        (("append",), {NOT_DURABLE: {"all", "data"}, "a differs": {"kill"}}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, tuple) else "",
)
def test_the_loss_models_under_which_a_replacement_is_wrong(pool, harness_of, steps, expected):
    command = ("replace_file", "a", "new content", *steps)
    scenario = Scenario(", ".join(steps), command, PREPARE, ("describe_file", "a"))
    found = losses(harness_of(scenario, pool))
    assert {problem: kinds & found.get(problem, set()) for problem, kinds in expected.items()} == (
        expected
    )
    assert bool(found) == bool(expected), found


def test_a_marker_that_is_written_first_is_found(pool, harness_of):
    steps = ("mark", "write", "sync file", "rename", "sync folder")
    command = ("replace_file", "a", "new content", *steps)
    scenario = Scenario("marked first", command, (), ("describe_file", "a"))
    assert losses(harness_of(scenario, pool)) == {NEITHER: {"kill", "data"}}


def test_a_folder_whose_parent_is_not_synced_is_found(pool, harness_of):
    steps = ("make folder", "write", "sync file", "rename", "sync folder")
    command = ("replace_file", "f/a", "new content", *steps)
    scenario = Scenario("new folder", command, (), ("describe_file", "f/a"))
    assert losses(harness_of(scenario, pool)) == {NOT_DURABLE: {"all"}}


def test_every_kind_of_change_is_replayed(pool, tmp_path):
    initial = {"a": b"0123456789"}
    root = tmp_path / "root"
    root.mkdir()
    write_tree(root, initial)
    with pool.one() as server:
        traced = run_traced(server, "change_in_many_ways", (), root, tmp_path / "log")
    assert traced.result.code == 0, traced.result.error
    recording = record(initial, root, traced.calls)
    recording.check_final(read_tree(root))
    assert {point.call.name for point in recording.points} >= {
        *("write", "pwrite64", "writev", "pwritev2", "ftruncate", "truncate", "fallocate"),
        *("fdatasync", "sync", "openat", "mkdir", "symlinkat", "unlinkat"),
    }
    operations = [point.operation for point in recording.points]
    assert replay(initial, operations).tree(Loss.ALL) == read_tree(root), "sync makes all durable"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("write_by_mapping", "mmap.* changes files unseen"),
        ("write_by_another_process", "a second process"),
        ("copy_in_the_kernel", "its data is not in the log"),
    ],
)
def test_changes_that_the_log_does_not_show_are_errors(pool, tmp_path, function, message):
    root = tmp_path / "root"
    root.mkdir()
    write_tree(root, {"a": b"0"})
    with pool.one() as server:
        traced = run_traced(server, function, (), root, tmp_path / "log")
    assert traced.result.code == 0, traced.result.error
    with pytest.raises(LogError, match=message):
        record({"a": b"0"}, root, traced.calls)


def test_a_crash_at_every_call_of_a_save_leaves_the_old_model_or_the_new(pool, harness_of):
    harness = harness_of("save", pool)
    assert not [problem for loss in Loss for problem in harness.check_durable(loss)]
    wrong = [
        f"{harness.reproducer(f'--crash {crashed.crashes[0]}')}: {problem}"
        for crashed, problems in pool.map(harness.check_crash, harness.crashed_trees)
        for problem in problems
    ]
    assert not wrong, "\n".join(wrong)


def test_a_fault_that_meets_another_call_is_repeated_until_it_meets_the_intended_one(
    pool, tmp_path
):
    """As if the recorded run had made more or fewer calls outside of the folder."""
    steps = ("write", "sync file", "rename", "sync folder")
    scenario = Scenario("moved", ("replace_file", "a", "new", *steps), PREPARE, ())
    harness = Harness(scenario, pool, tmp_path)
    names = [point.call.name for point in harness.points]
    assert names == ["openat", "write", "fsync", "rename", "fsync"]
    for index, shift in ((0, 1), (1, 5), (2, 1), (4, -1)):
        point = harness.points[index]
        moved = replace(point, call=replace(point.call, ordinal=point.call.ordinal + shift))
        harness.points[index], harness.num_missed = moved, 0
        result, tree = harness.inject(moved, "error=EIO")
        assert harness.num_missed == 1 and "Input/output error" in result.error
        assert tree["a"] == (b"new" if index == 4 else b"old content")
    harness.ordinal_now = lambda index: 1
    with pytest.raises(AssertionError, match=r"did not meet this call, but .*num_before=2"):
        harness.inject(harness.points[4], "error=EIO")


def test_the_number_of_crash_points_is_what_strace_and_the_kernel_count(pool, harness_of):
    check_counts(harness_of("save", pool), pool)


def check_counts(harness: Harness, pool) -> None:
    """Compare the recording with counts that do not share its parser: `strace -c` for all calls,
    the kernel's /proc/self/io for writes, and a search in a log of another form for the changes
    below the folder."""
    recorded = Counter(call.name for call in harness.recording.calls if call.result >= 0)
    function, *args = harness.scenario.command
    with harness.folder(harness.initial) as root, pool.one() as server:
        result, counts = count_calls(server, function, args, root, harness.new_log())
    assert {name: counts.get(name, 0) for name in CHANGES} == {n: recorded[n] for n in CHANGES}
    assert result.num_writes == sum(recorded[name] for name in WRITES)
    with harness.folder(harness.initial) as root, pool.one() as server:
        changes = count_changes(server, function, args, root, harness.new_log())
    assert changes == Counter(point.call.name for point in harness.points)
