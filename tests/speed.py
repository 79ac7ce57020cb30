"""Compare the speed of two checkouts: `weft bench train|engine|translate`, measured alternately.

    python -m tests.speed BEFORE [AFTER] [--pairs 10] [--decoder smollm2] [--translator DIR]
                          [--source FILE] [--benches train,engine,translate] [--json OUT]
                          [--workloads decode,prefill,shared]
                          [--before-env NAME=VALUE] [--after-env NAME=VALUE]
    python -m tests.speed . --before-env WEFT_WAIT=spin     two settings of this checkout

BEFORE and AFTER are checkouts (AFTER: this one). Each pair runs the same command in both, in
alternating order. Prints, for each workload, the median of the ratios of the pairs (above 1: AFTER
is faster) with a 95 % bootstrap interval. A workload holds if the interval reaches 0.97. Only the
command line is used, so any two commits can be compared. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOWER_BOUND = 0.97
SAMPLES = 2000

Speeds = dict[str, float]


@dataclass(frozen=True)
class Side:
    """A checkout, and the environment variables that it is measured with."""

    checkout: Path
    variables: tuple[str, ...]
    """NAME=VALUE."""

    @property
    def environment(self) -> dict[str, str]:
        changes = dict(one.split("=", 1) for one in self.variables)
        return {**os.environ, **changes, "PYTHONPATH": str(self.checkout / "src")}


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The benchmark commands by name; each prints one JSON object."""
    once = ["--systems", "weft", "--json"]
    benches = {
        "train": ["bench", "train", *once, "--repeats", "2"],
        "engine": ["bench", "engine", options.decoder, *once, "--repeats", "2"]
        + ["--workloads", options.workloads],
    }
    if options.translator and options.source:
        source = ["--source", str(options.source), "--repeats", "2"]
        benches["translate"] = ["bench", "translate", str(options.translator), *once, *source]
    wanted = options.benches.split(",")
    return {name: command for name, command in benches.items() if name in wanted}


def run(side: Side, command: Sequence[str]) -> Speeds:
    """Tokens per second of each workload of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "weft", *command],
        capture_output=True,
        text=True,
        cwd=side.checkout,
        env=side.environment,
        check=False,
    )
    if done.returncode:
        sys.exit(f"weft {' '.join(command)} failed in {side.checkout}:\n{done.stderr[-2000:]}")
    return {name_of(row): row["tokens_per_second"] for row in json.loads(done.stdout)["rows"]}


def name_of(row: Mapping[str, Any]) -> str:
    return f"{row.get('workload', 'step')} {row['system']}"


def measure(sides: Sequence[Side], command: Sequence[str], pairs: int) -> dict[str, list[float]]:
    """The ratios AFTER / BEFORE of each pair, by workload."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for pair in range(pairs):
        order = sides if pair % 2 == 0 else tuple(reversed(sides))
        speeds = {side: run(side, command) for side in order}
        before, after = (speeds[side] for side in sides)
        for name in before.keys() & after.keys():
            ratios[name].append(after[name] / before[name])
        print(f"pair {pair + 1} of {pairs}", file=sys.stderr)
    return ratios


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(SAMPLES))
    return medians[int(0.025 * SAMPLES)], medians[int(0.975 * SAMPLES)]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--decoder", default="smollm2")
    parser.add_argument("--translator", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--benches", default="train,engine,translate")
    parser.add_argument("--workloads", default="decode,prefill,shared", help="of engine")
    for name in ("--before-env", "--after-env"):
        parser.add_argument(name, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    sides = (
        Side(options.before.resolve(), tuple(options.before_env)),
        Side(options.after.resolve(), tuple(options.after_env)),
    )
    table, is_slower = {}, False
    for bench, command in commands(options).items():
        for name, ratios in sorted(measure(sides, command, options.pairs).items()):
            low, high = interval(ratios)
            is_slower |= high < LOWER_BOUND
            table[f"{bench}: {name}"] = {"median": statistics.median(ratios), "ratios": ratios}
            print(f"{bench}: {name:28} {statistics.median(ratios):.3f}  ({low:.3f} to {high:.3f})")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return is_slower


if __name__ == "__main__":
    sys.exit(main())
