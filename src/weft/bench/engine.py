"""The engine's speed: workloads by name and seed, through Weft and its peers -> rows and ratios.

    decode     one stream: new tokens a second
    prefill    one long prompt: its tokens a second until the first new one
    shared     32 requests with one beginning: new tokens a second
    distinct   32 requests with nothing in common: the prefix cache against none
    tree, mixed, waiting       the scheduler alone, see scheduling.py

Prompts are random ids, new ones in every round, the same for every system; greedy, and no token
ends a text. Differs from benchmarks of servers: no HTTP and no texts, so that nothing but the
engines is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from weft.bench import scheduling, turns
from weft.bench.goals import Goal
from weft.bench.peers.peer import Peer
from weft.bench.peers.systems import INT8, SYSTEMS, WEFT, WITHOUT_CACHE, Say, started
from weft.checkpoint.formats import describe
from weft.core.errors import UsageError
from weft.core.registry import pick


@dataclass(frozen=True)
class Workload:
    """Prompts of `shared_len + own_len` tokens and what is to follow them."""

    own_len: int
    new_tokens: int
    num_requests: int = 1
    shared_len: int = 0
    counted: Literal["new", "prompt"] = "new"
    """Which tokens its rate counts."""
    is_own: bool = False
    """Only Weft's: with the prefix cache and without."""
    patience: int = 1
    """So many times the rounds, where a small difference is looked for."""

    @property
    def length(self) -> int:
        return self.shared_len + self.own_len + self.new_tokens

    @property
    def num_counted(self) -> int:
        one = self.new_tokens if self.counted == "new" else self.shared_len + self.own_len
        return one * self.num_requests

    def scaled(self, scale: float) -> Workload:
        """The same with lengths that many times as long."""

        def times(length: int) -> int:
            return max(min(length, 1), round(length * scale))

        own, new, shared = map(times, (self.own_len, self.new_tokens, self.shared_len))
        return replace(self, own_len=own, new_tokens=new, shared_len=shared)

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random ids; low ones are left out, as special tokens lie there."""
        rng = random.Random(seed)
        ids = range(min(100, vocab_size // 2), vocab_size)
        shared = rng.choices(ids, k=self.shared_len)
        return [shared + rng.choices(ids, k=self.own_len) for _ in range(self.num_requests)]

    def suits(self, name: str) -> bool:
        """Whether a system takes part."""
        if self.is_own or name == WITHOUT_CACHE:
            return self.is_own and name in (WEFT, WITHOUT_CACHE)
        return ("batch" if self.num_requests > 1 else "stream") in SYSTEMS[name].skills


WORKLOADS = {
    # a prompt of one token costs what any other step does: nothing but decoding is measured
    "decode": Workload(own_len=1, new_tokens=128),
    "prefill": Workload(own_len=1024, new_tokens=1, counted="prompt"),
    "shared": Workload(own_len=16, new_tokens=64, num_requests=32, shared_len=660),
    "distinct": Workload(own_len=96, new_tokens=32, num_requests=32, is_own=True, patience=3),
}

DRY: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "tree": scheduling.tree,
    "mixed": scheduling.mixed,
    "waiting": scheduling.waiting,
}
"""Measured without a model: a seed -> rows."""

NAMES = (*WORKLOADS, *DRY)

GOALS = (
    *(Goal(f"decode: {name}/llama.cpp", 1.0) for name in (WEFT, INT8)),
    *(Goal(f"prefill: {name}/best peer", 1.2) for name in (WEFT, INT8)),
    *(Goal(f"shared: {name}/vllm", 3.0) for name in (WEFT, INT8)),
    Goal(f"distinct: weft/{WITHOUT_CACHE}", 0.99),
    Goal("tree: hits/optimal order's", 0.95),
    Goal("mixed: rows with tokens/rows held", 0.96),
    Goal("waiting: milliseconds a plan", 1.0, is_most=True),
)


@dataclass(frozen=True)
class Plan:
    """What is measured, and how."""

    model: str
    workloads: Sequence[str] = NAMES
    systems: Sequence[str] = (WEFT, INT8, "llama.cpp", "vllm", "transformers")
    peers: Path = Path(".peers")
    repeats: int = 5
    threads: int = 2
    seed: int = 0
    scale: float = 1.0

    def chosen(self) -> dict[str, Workload]:
        """The workloads that need a model, at their size."""
        for name in self.workloads:
            pick(dict.fromkeys(NAMES), name, "workload")
        named = [name for name in self.workloads if name in WORKLOADS]
        return {name: WORKLOADS[name].scaled(self.scale) for name in named}

    def names(self) -> list[str]:
        """The systems that take part in any of them, Weft first."""
        for name in self.systems:
            pick(SYSTEMS, name, "system")
        wanted = dict.fromkeys([WEFT, WITHOUT_CACHE, *self.systems])
        chosen = self.chosen().values()
        return [name for name in wanted if any(one.suits(name) for one in chosen)]


def measure(plan: Plan, say: Say) -> dict[str, Any]:
    """{"rows", "ratios", "goals", "machine", "settings"}; see docs/bench.md."""
    results = turns.Results()
    chosen, names = plan.chosen(), plan.names()
    if chosen:
        max_len = max(one.length for one in chosen.values())
        vocab_size = checked(plan.model, max_len)
        with started(names, plan.model, plan.threads, max_len, plan.peers, say) as peers:
            for name, workload in chosen.items():
                found = run(name, workload, peers, plan, vocab_size, say)
                results.add(name, found, workload.num_counted)
    for name in plan.workloads:
        if name in DRY:
            say(f"{name}: the scheduler alone")
            results.rows += DRY[name](plan.seed)
    results.ratios |= best_peer(results.ratios) | scheduling.ratios(results.rows)
    settings = {key: getattr(plan, key) for key in ("model", "repeats", "seed", "scale")}
    return results.to_dict(GOALS, plan.threads, settings)


def checked(model: str, length: int) -> int:
    """The size of a decoder's vocabulary; a UsageError for a model that cannot run this."""
    config = describe(model).config
    if config.kind != "decoder":
        raise UsageError(
            f"{model} is of kind {config.kind}: bench engine needs a decoder. "
            "`weft bench translate` measures an encoder-decoder."
        )
    if length > config.max_len:
        raise UsageError(
            f"the longest request has {length} tokens, but {model} reaches {config.max_len}. "
            f"Use --scale {config.max_len / length:.2f} or less, or another model."
        )
    return config.vocab_size


def run(
    name: str,
    workload: Workload,
    peers: dict[str, Peer],
    plan: Plan,
    vocab_size: int,
    say: Say,
) -> turns.Found:
    """One workload, all its rounds."""
    taking_part = {system: peer for system, peer in peers.items() if workload.suits(system)}
    rounds = plan.repeats * workload.patience
    say(f"{name}: {', '.join(taking_part)}; rounds: {rounds}")
    requests = (
        {
            "do": "generate",
            "prompts": workload.prompts(vocab_size, 1000 * plan.seed + number),
            "new_tokens": workload.new_tokens,
        }
        for number in count()
    )
    return turns.in_rounds(taking_part, requests, rounds, say)


def best_peer(ratios: dict[str, float]) -> dict[str, float]:
    """Weft's prefill against the fastest of the others."""
    best: dict[str, float] = {}
    for ours in (WEFT, INT8):
        begin = f"prefill: {ours}/"
        found = [value for name, value in ratios.items() if name.startswith(begin)]
        best |= {f"{begin}best peer": min(found)} if found else {}
    return best
