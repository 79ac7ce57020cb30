"""The same requests to several systems, in turns -> rows of medians, and ratios.

In each round every system runs the same request, in the opposite order of the round before; the
first round only warms up. A ratio is the median of the rounds' own ratios, so that a slow minute of
the machine hits both sides of it alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from weft.bench.goals import Goal, judged
from weft.bench.measure import machine
from weft.bench.peers.peer import Answer, Peer, PeerError
from weft.bench.peers.systems import INT8, WEFT, Say

Request = Mapping[str, Any]
Found = dict[str, list[Answer]]
"""The answers of each system, round by round."""


def in_rounds(
    peers: Mapping[str, Peer], requests: Iterable[Request], rounds: int, say: Say
) -> Found:
    """Ask all peers for the first of `requests`, then the next. Who fails is said, and left out."""
    found: Found = {name: [] for name in peers}
    for number, asked in zip(range(rounds + 1), requests, strict=False):
        names = [name for name in peers if name in found]
        for name in names if number % 2 else reversed(names):
            try:
                answer = peers[name].ask(**asked)
            except PeerError as error:
                if name == WEFT:
                    raise
                say(str(error))
                del found[name]
                continue
            if number:
                found[name].append(answer)
    return found


@dataclass
class Results:
    """What all workloads together gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, workload: str, found: Found, num_tokens: int | None = None) -> None:
        """`num_tokens`: those that a round's rate counts; None: all that were written."""
        self.rows += rows(workload, found, num_tokens)
        self.ratios |= ratios(workload, found)
        self.versions |= {system: answers[-1].version for system, answers in found.items()}

    def to_dict(
        self, goals: Sequence[Goal], threads: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "rows": self.rows,
            "ratios": self.ratios,
            "goals": judged(goals, self.ratios),
            "machine": {**machine(), "threads": threads, "versions": self.versions},
            "settings": dict(settings),
        }


def median_seconds(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.seconds for answer in answers)


def ratio(found: Found, name: str, other: str) -> float:
    """How many times faster `name` is than `other`."""
    pairs = zip(found[name], found[other], strict=True)
    return statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)


def ratios(workload: str, found: Found) -> dict[str, float]:
    """Weft's against every other system's, and so with inputs in 8 bits."""
    ours = [name for name in (WEFT, INT8) if name in found]
    others = [name for name in found if name not in ours]
    return {f"{workload}: {one}/{name}": ratio(found, one, name) for one in ours for name in others}


def rows(workload: str, found: Found, num_tokens: int | None = None) -> list[dict[str, Any]]:
    """One for each system."""
    return [
        {
            "workload": workload,
            "system": name,
            "tokens_per_second": (num_tokens or answers[-1].num_tokens) / median_seconds(answers),
            "seconds": median_seconds(answers),
            "rounds": [answer.seconds for answer in answers],
            "same_as_weft": agreement(found[WEFT][-1].outputs, answers[-1].outputs),
            "note": answers[-1].note,
        }
        for name, answers in found.items()
    ]


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """The share of our tokens up to where theirs first differ: whether both run the same model."""
    pairs = list(zip(ours, theirs, strict=True))
    same = sum(len(list(takewhile(lambda two: two[0] == two[1], zip(*pair)))) for pair in pairs)  # noqa: B905
    return same / max(1, sum(map(len, ours)))
