"""Engine speed: workloads by name and seed, run by Weft and its peers -> rows and ratios.

    decode     one stream: new tokens per second
    prefill    one long prompt: its tokens per second until the first new token
    shared     32 requests with a common prefix: new tokens per second
    distinct   32 requests with nothing in common: with and without the prefix cache
    busy       the same as decode, beside 1, 2, 4 and 8 busy processes, see busy.py
    latency    a stream while a prompt of 4,000 tokens arrives, see latency.py
    tree, mixed, waiting       the scheduler without a model, see scheduling.py

Prompts are random ids, new ones in every round, the same for every system; greedy, and no token
ends a text. Unlike benchmarks of servers there is no HTTP and no text, so that only the engines are
compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

from weft.bench import latency, scheduling
from weft.bench.busy import NEIGHBORS, busy_ratios, busy_rows, measure_seconds
from weft.bench.comparison import BenchResults, Goal, Responses, agreement, run_rounds
from weft.bench.peers.systems import (
    INT8,
    SYSTEMS,
    WEFT,
    WITHOUT_CACHE,
    Peer,
    PeerError,
    Report,
    start_systems,
)
from weft.checkpoint.description import describe
from weft.core.errors import UsageError
from weft.core.registry import pick


@dataclass(frozen=True)
class EngineWorkload:
    """Requests with prompts of `shared_len + own_len` tokens."""

    own_len: int
    new_tokens: int
    num_requests: int = 1
    shared_len: int = 0
    counted: Literal["new", "prompt"] = "new"
    """Which tokens are counted for the rate."""
    weft_only: bool = False
    """Run by Weft alone, with and without the prefix cache."""
    round_factor: int = 1
    """Multiplies the rounds, where a small difference is to be found."""
    has_neighbors: bool = False
    """Measured beside other processes that use the CPUs."""

    @property
    def length(self) -> int:
        return self.shared_len + self.own_len + self.new_tokens

    @property
    def num_counted(self) -> int:
        prompt_len = self.shared_len + self.own_len
        return self.num_requests * (self.new_tokens if self.counted == "new" else prompt_len)

    def scaled(self, scale: float) -> EngineWorkload:
        """The same workload with lengths multiplied by `scale`."""

        def times(length: int) -> int:
            return max(min(length, 1), round(length * scale))

        own_len, new, shared = map(times, (self.own_len, self.new_tokens, self.shared_len))
        return replace(self, own_len=own_len, new_tokens=new, shared_len=shared)

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random ids, without low ones, which are often special tokens."""
        rng = random.Random(seed)
        ids = range(min(100, vocab_size // 2), vocab_size)
        shared = rng.choices(ids, k=self.shared_len)
        return [shared + rng.choices(ids, k=self.own_len) for _ in range(self.num_requests)]

    def includes(self, name: str) -> bool:
        """Whether a system runs this workload."""
        if self.weft_only or name == WITHOUT_CACHE:
            return self.weft_only and name in (WEFT, WITHOUT_CACHE)
        return ("batch" if self.num_requests > 1 else "stream") in SYSTEMS[name].skills


WORKLOADS = {
    # a prompt of one token costs as much as a decode step: only decoding is measured
    "decode": EngineWorkload(own_len=1, new_tokens=128),
    "prefill": EngineWorkload(own_len=1024, new_tokens=1, counted="prompt"),
    "shared": EngineWorkload(own_len=16, new_tokens=64, num_requests=32, shared_len=660),
    "distinct": EngineWorkload(
        own_len=96, new_tokens=32, num_requests=32, weft_only=True, round_factor=3
    ),
    "busy": EngineWorkload(own_len=1, new_tokens=128, has_neighbors=True),
}

SCHEDULER_WORKLOADS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "tree": scheduling.tree,
    "mixed": scheduling.mixed,
    "waiting": scheduling.waiting,
}
"""Run without a model: a seed -> rows."""

NAMES = (*WORKLOADS, "latency", *SCHEDULER_WORKLOADS)

GOALS = (
    *(Goal(f"decode: {name}/llama.cpp", 1.0) for name in (WEFT, INT8)),
    *(Goal(f"prefill: {name}/best peer", 1.2) for name in (WEFT, INT8)),
    *(Goal(f"shared: {name}/vllm", 3.0) for name in (WEFT, INT8)),
    Goal(f"distinct: weft/{WITHOUT_CACHE}", 0.99),
    *(Goal(f"busy: {name}, N = {n}/fair share", 0.7) for name in (WEFT, INT8) for n in NEIGHBORS),
    *(Goal(f"busy: {INT8}, N = {n}/llama.cpp", 1.0) for n in NEIGHBORS),
    *(Goal(f"latency: {name}, ITL p95/alone", 3.0, is_maximum=True) for name in (WEFT, INT8)),
    *(Goal(f"latency: {name}, ITL maximum/alone", 6.0, is_maximum=True) for name in (WEFT, INT8)),
    *(
        Goal(f"latency: {name}, TTFT of the prompt/alone", 2.0, is_maximum=True)
        for name in (WEFT, INT8)
    ),
    Goal("tree: hits/optimal order's", 0.95),
    Goal("mixed: rows with tokens/rows held", 0.96),
    Goal("waiting: milliseconds a plan", 1.0, is_maximum=True),
)


@dataclass(frozen=True)
class EngineBench:
    """Settings of a benchmark."""

    model: str
    workloads: Sequence[str] = NAMES
    systems: Sequence[str] = (WEFT, INT8, "llama.cpp", "vllm", "transformers")
    peers: Path = Path(".peers")
    repeats: int = 5
    threads: int = 2
    seed: int = 0
    scale: float = 1.0
    neighbors: Sequence[int] = NEIGHBORS
    """Numbers of busy processes of the workload busy."""

    def model_workloads(self) -> dict[str, EngineWorkload]:
        """The selected workloads that need a model, scaled."""
        for name in self.workloads:
            pick(dict.fromkeys(NAMES), name, "workload")
        named = [name for name in self.workloads if name in WORKLOADS]
        return {name: WORKLOADS[name].scaled(self.scale) for name in named}

    def system_names(self) -> list[str]:
        """The systems that run any of the workloads, Weft first."""
        for name in self.systems:
            pick(SYSTEMS, name, "system")
        names = dict.fromkeys([WEFT, WITHOUT_CACHE, *self.systems])
        workloads = self.model_workloads().values()
        return [name for name in names if any(one.includes(name) for one in workloads)]


def measure(bench: EngineBench, report: Report) -> dict[str, Any]:
    """{"rows", "ratios", "goals", "machine", "settings"}; see docs/bench.md."""
    results = BenchResults()
    workloads, names = bench.model_workloads(), bench.system_names()
    if workloads:
        max_len = max(workload.length for workload in workloads.values())
        vocab_size = check_decoder(bench.model, max_len)
        with start_systems(
            names, bench.model, bench.threads, max_len, bench.peers, report
        ) as peers:
            for name, workload in workloads.items():
                if workload.has_neighbors:
                    results.rows += run_busy(workload, peers, bench, vocab_size, report)
                    continue
                responses = run_workload(name, workload, peers, bench, vocab_size, report)
                results.add(name, responses, workload.num_counted)
    if "latency" in bench.workloads:
        report("latency: weft, weft int8")
        check_decoder(bench.model, latency.PROMPT_LEN + 100)
        results.rows += latency.rows(bench.model, bench.seed, bench.scale)
    for name in bench.workloads:
        if name in SCHEDULER_WORKLOADS:
            report(f"{name}: the scheduler alone")
            results.rows += SCHEDULER_WORKLOADS[name](bench.seed)
    busy = [row for row in results.rows if "neighbors" in row]
    results.ratios |= best_peer_ratios(results.ratios) | busy_ratios(busy)
    results.ratios |= scheduling.ratios(results.rows) | latency.ratios(results.rows)
    settings = {key: getattr(bench, key) for key in ("model", "repeats", "seed", "scale")}
    return results.to_dict(GOALS, bench.threads, settings)


def check_decoder(model: str, length: int) -> int:
    """The vocabulary size of a decoder; a UsageError for a model that cannot run `length`."""
    config = describe(model).config
    if config.kind != "decoder":
        raise UsageError(
            f"{model} is of kind {config.kind}: bench engine needs a decoder. "
            "`weft bench translate` measures an encoder-decoder."
        )
    if length > config.max_len:
        raise UsageError(
            f"the longest request has {length} tokens, but max_len of {model} is {config.max_len}. "
            f"Use --scale {config.max_len / length:.2f} or less, or another model."
        )
    return config.vocab_size


def run_workload(
    name: str,
    workload: EngineWorkload,
    peers: dict[str, Peer],
    bench: EngineBench,
    vocab_size: int,
    report: Report,
) -> Responses:
    """All rounds of one workload."""
    included = {system: peer for system, peer in peers.items() if workload.includes(system)}
    rounds = bench.repeats * workload.round_factor
    report(f"{name}: {', '.join(included)}; rounds: {rounds}")
    requests = (
        {
            "do": "generate",
            "prompts": workload.prompts(vocab_size, 1000 * bench.seed + number),
            "new_tokens": workload.new_tokens,
        }
        for number in count()
    )
    return run_rounds(included, requests, rounds, report)


def run_busy(
    workload: EngineWorkload,
    peers: dict[str, Peer],
    bench: EngineBench,
    vocab_size: int,
    report: Report,
) -> list[dict[str, Any]]:
    """One request again and again, idle and with neighbors. Its tokens must always be the same."""
    included = {system: peer for system, peer in peers.items() if workload.includes(system)}
    report(f"busy: {', '.join(included)}; rounds: {bench.repeats}")
    prompts = workload.prompts(vocab_size, 1000 * bench.seed)
    outputs: dict[str, list[list[int]]] = {}
    sames: dict[str, list[float]] = {}

    def run(name: str) -> float:
        response = included[name].request(
            "generate", prompts=prompts, new_tokens=workload.new_tokens
        )
        outputs.setdefault(name, response.outputs)
        sames.setdefault(name, []).append(agreement(outputs[name], response.outputs))
        return response.seconds

    runs = {name: partial(run, name) for name in included if can_run(partial(run, name), report)}
    seconds = measure_seconds(runs, bench.repeats, bench.neighbors)
    rows = busy_rows(seconds, workload.num_counted, bench.threads)
    return [{**row, "same_as_idle": min(sames[row["system"]])} for row in rows]


def can_run(run: Callable[[], float], report: Report) -> bool:
    """Whether a first request succeeds; a failure is reported."""
    try:
        run()
    except PeerError as error:
        report(str(error))
        return False
    return True


def best_peer_ratios(ratios: dict[str, float]) -> dict[str, float]:
    """Weft's prefill against the fastest of the others."""
    best: dict[str, float] = {}
    for weft in (WEFT, INT8):
        prefix = f"prefill: {weft}/"
        values = [value for name, value in ratios.items() if name.startswith(prefix)]
        best |= {f"{prefix}best peer": min(values)} if values else {}
    return best
