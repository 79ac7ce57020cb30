"""The command line of the fault-injection harness; see the package."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .filesystem import Loss
from .harness import ERRORS, Crash, CrashedTree, Harness, ServerPool
from .scenarios import BY_NAME, SCENARIOS
from .tracer import MISSING, has_strace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("scenario", nargs="?", choices=[*BY_NAME], help="default: count all")
    parser.add_argument("--points", action="store_true", help="list the calls")
    parser.add_argument("--crash", help="INDEX:kill, INDEX:data or INDEX:all; 12t: torn write")
    parser.add_argument("--error", help="INDEX:ENOSPC or INDEX:EIO")
    parser.add_argument("--kill", type=int, help="INDEX")
    parser.add_argument("--no-errors", action="store_true", help="crashes only")
    options = parser.parse_args()
    if not has_strace():
        print(MISSING, file=sys.stderr)
        return 2
    pool = ServerPool(os.cpu_count() or 1)
    try:
        with tempfile.TemporaryDirectory() as work:
            if options.scenario is None:
                return print_counts(pool, Path(work))
            return run_one(Harness(BY_NAME[options.scenario], pool, Path(work)), options)
    finally:
        pool.close()


def print_counts(pool: ServerPool, work: Path) -> int:
    for scenario in SCENARIOS:
        print_count(Harness(scenario, pool, work))
    return 0


def print_count(harness: Harness) -> None:
    """Crash points, calls by name, and distinct results of crashes."""
    points, name = harness.points, harness.scenario.name
    for phase, number in Counter(harness.phases).items():
        torn = sum(p.is_torn for p, q in zip(points, harness.phases, strict=True) if q == phase)
        print(f"{name} {phase}".strip() + f": {number} crash points, {torn} torn writes")
    calls = Counter(point.call.name for point in points)
    print("  " + ", ".join(f"{count} {call}" for call, count in calls.most_common()))
    print(f"  {len(harness.crashed_trees)} distinct trees of {3 * (len(points) + 1)} crashes")


def run_one(harness: Harness, options: argparse.Namespace) -> int:
    if options.points:
        for index, point in enumerate(harness.points):
            torn = " (torn)" if point.is_torn else ""
            print(f"{index:4} {harness.phases[index]:10} {point.label}{torn}")
        return 0
    if options.crash:
        return show_crash(harness, Crash.parse(options.crash))
    if options.error:
        index, _, error = options.error.partition(":")
        print(harness.points[int(index)].label)
        return show(harness.check_error((int(index), error)))
    if options.kill is not None:
        print(harness.points[options.kill].label)
        return show(harness.check_kill(options.kill))
    return run_all(harness, errors=not options.no_errors)


def show_crash(harness: Harness, crash: Crash) -> int:
    tree = next(tree for one, tree in harness.all_crashes() if one == crash)
    if crash.before < len(harness.points):
        print(f"crash before {harness.points[crash.before].label} leaves")
    for path, content in sorted(tree.items()):
        size = f"{len(content)} bytes" if isinstance(content, bytes) else content or "folder"
        print(f"    {path}: {size}")
    return show(harness.check_crash(CrashedTree(tree, [crash])))


def show(problems: list[str]) -> int:
    print("\n".join(problems) or "no problem")
    return bool(problems)


def run_all(harness: Harness, errors: bool) -> int:
    print_count(harness)
    num_wrong = 0
    for loss in Loss:
        problems = harness.check_durable(loss)
        for problem in problems:
            print(f"not durable after the command has ended, loss model {loss.value}: {problem}")
        num_wrong += bool(problems)
    for crashed, problems in harness.pool.map(harness.check_crash, harness.crashed_trees):
        crash = crashed.crashes[0]
        label = harness.points[crash.before].label if crash.before < len(harness.points) else "end"
        for problem in problems:
            print(f"--crash {crash} before {label}: {problem}")
        num_wrong += bool(problems)
    cases = [(index, error) for index in range(len(harness.points)) for error in ERRORS]
    for (index, error), problems in harness.pool.map(harness.check_error, cases if errors else []):
        for problem in problems:
            print(f"--error {index}:{error} at {harness.points[index].label}: {problem}")
        num_wrong += bool(problems)
    print(f"{num_wrong} cases with problems")
    if errors:
        missed = harness.num_missed
        print(f"{len(cases)} injected errors; {missed} met another call first and were repeated")
    return bool(num_wrong)


if __name__ == "__main__":
    sys.exit(main())
