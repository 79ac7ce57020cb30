"""The same requests to several systems, alternately -> rows of medians, ratios and goals.

In each round every system runs the same request, in the reverse order of the previous round; the
first round is a warm-up. A ratio is the median of the ratios of the rounds, so that a slow minute
of the machine affects both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from weft.bench.measure import machine
from weft.bench.peers.systems import INT8, WEFT, Peer, PeerError, PeerResponse, Report

PeerRequest = Mapping[str, Any]
Responses = dict[str, list[PeerResponse]]
"""The responses of each system, by round."""


@dataclass(frozen=True)
class Goal:
    """A bound for one of the ratios."""

    name: str
    bound: float
    is_maximum: bool = False
    """True: the ratio must be at most the bound; False: at least."""

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.is_maximum else value >= self.bound


def check_goals(goals: Sequence[Goal], ratios: Mapping[str, float]) -> list[dict[str, Any]]:
    """Rows for the goals whose ratio was measured."""
    return [
        {
            "goal": goal.name,
            "measured": ratios[goal.name],
            "asked": f"at {'most' if goal.is_maximum else 'least'} {goal.bound:g}",
            "is_met": goal.is_met(ratios[goal.name]),
        }
        for goal in goals
        if goal.name in ratios
    ]


def run_rounds(
    peers: Mapping[str, Peer], requests: Iterable[PeerRequest], rounds: int, report: Report
) -> Responses:
    """Send the first of `requests` to all peers, then the next. A peer that fails is reported and
    left out; a failure of Weft is raised."""
    responses: Responses = {name: [] for name in peers}
    for number, request in zip(range(rounds + 1), requests, strict=False):
        names = [name for name in peers if name in responses]
        for name in names if number % 2 else reversed(names):
            try:
                response = peers[name].request(**request)
            except PeerError as error:
                if name == WEFT:
                    raise
                report(str(error))
                del responses[name]
                continue
            if number:
                responses[name].append(response)
    return responses


@dataclass
class BenchResults:
    """Rows, ratios and versions of all workloads."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, workload: str, responses: Responses, num_tokens: int | None = None) -> None:
        """`num_tokens`: tokens of a round for its rate; None: all that were generated."""
        self.rows += workload_rows(workload, responses, num_tokens)
        self.ratios |= workload_ratios(workload, responses)
        self.versions |= {system: rounds[-1].version for system, rounds in responses.items()}

    def to_dict(
        self, goals: Sequence[Goal], threads: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "rows": self.rows,
            "ratios": self.ratios,
            "goals": check_goals(goals, self.ratios),
            "machine": {**machine(), "threads": threads, "versions": self.versions},
            "settings": dict(settings),
        }


def median_seconds(rounds: Sequence[PeerResponse]) -> float:
    return statistics.median(response.seconds for response in rounds)


def speed_ratio(responses: Responses, name: str, other: str) -> float:
    """How many times faster `name` is than `other`."""
    pairs = zip(responses[name], responses[other], strict=True)
    return statistics.median(second.seconds / first.seconds for first, second in pairs)


def workload_ratios(workload: str, responses: Responses) -> dict[str, float]:
    """Weft, exact and with int8 activations, against every other system."""
    weft = [name for name in (WEFT, INT8) if name in responses]
    others = [name for name in responses if name not in weft]
    return {
        f"{workload}: {name}/{other}": speed_ratio(responses, name, other)
        for name in weft
        for other in others
    }


def workload_rows(
    workload: str, responses: Responses, num_tokens: int | None = None
) -> list[dict[str, Any]]:
    """One row for each system."""
    return [
        {
            "workload": workload,
            "system": name,
            "tokens_per_second": (num_tokens or rounds[-1].num_tokens) / median_seconds(rounds),
            "seconds": median_seconds(rounds),
            "rounds": [response.seconds for response in rounds],
            "same_as_weft": agreement(responses[WEFT][-1].outputs, rounds[-1].outputs),
            "note": rounds[-1].note,
        }
        for name, rounds in responses.items()
    ]


def agreement(expected: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> float:
    """Share of the expected tokens before the first difference: whether both run the same model."""
    pairs = list(zip(expected, outputs, strict=True))
    same = sum(len(list(takewhile(lambda two: two[0] == two[1], zip(*pair)))) for pair in pairs)  # noqa: B905
    return same / max(1, sum(map(len, expected)))
