"""Server speed: workloads by name and seed, sent over HTTP to Weft and its peers -> rows, ratios.

    1, 8, 32 streams   requests with nothing in common, so many at a time
    prefixes           requests of which several begin alike
    cached             Weft only: long prompts, each sent twice

One load generator sends the same texts to one server at a time: `vllm bench serve`, or http_load.py
if vLLM is not installed. Greedy, and no token ends a text. Times are the generator's: TTFT until
the first token of a request, TPOT for each token after it. In the workload of 32 streams each
Weft server is also compared with its engine alone, which gets the same prompts without HTTP.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from weft.bench.comparison import Goal, check_goals
from weft.bench.engine import check_decoder
from weft.bench.measure import machine
from weft.bench.peers.install import python_of
from weft.bench.peers.servers import (
    INT8_Q4_0,
    NAME,
    SERVERS,
    Server,
    ServerLimits,
    generator_cpus,
    pinned,
    server_cpus,
)
from weft.bench.peers.systems import (
    INT8,
    SYSTEMS,
    WEFT,
    Peer,
    PeerError,
    Report,
    model_in_format,
)
from weft.checkpoint.formats import load_tokenizer
from weft.core.errors import UsageError, WeftError
from weft.core.registry import pick
from weft.text.tokenizer import Tokenizer

PEERS_FOLDER = Path(__file__).with_name("peers")
WORD = re.compile(rb" [a-z]+")
"""Tokens whose texts, one after the other, are read as the same tokens again."""
EXACT = (WEFT, INT8)
"""Weft's servers, which are always there."""
WEFT_SERVERS = (*EXACT, INT8_Q4_0)


@dataclass(frozen=True)
class ServeWorkload:
    """`num_requests` prompts of `shared_len + own_len` tokens, `streams` of them at a time."""

    streams: int
    num_requests: int
    own_len: int = 128
    new_tokens: int = 128
    shared_len: int = 0
    num_prefixes: int = 1
    num_sent: int = 1
    """How often each prompt is sent, one right after the other."""
    weft_only: bool = False
    has_engine: bool = False
    """Whether Weft's engine alone runs it as well."""

    @property
    def length(self) -> int:
        return self.shared_len + self.own_len + self.new_tokens

    def scaled(self, scale: float) -> ServeWorkload:
        def times(length: int) -> int:
            return max(min(length, 1), round(length * scale))

        own_len, new, shared = map(times, (self.own_len, self.new_tokens, self.shared_len))
        return replace(self, own_len=own_len, new_tokens=new, shared_len=shared)

    def prompts(self, ids: Sequence[int], seed: int) -> list[list[int]]:
        """Random prompts; the next one has the next prefix."""
        rng = random.Random(seed)
        prefixes = [rng.choices(ids, k=self.shared_len) for _ in range(self.num_prefixes)]
        prompts = [
            prefixes[index % self.num_prefixes] + rng.choices(ids, k=self.own_len)
            for index in range(self.num_requests)
        ]
        return [prompt for prompt in prompts for _ in range(self.num_sent)]


WARM_UP = ServeWorkload(streams=4, num_requests=4, own_len=16, new_tokens=8)
WORKLOADS = {
    "1 stream": ServeWorkload(streams=1, num_requests=4),
    "8 streams": ServeWorkload(streams=8, num_requests=16),
    "32 streams": ServeWorkload(streams=32, num_requests=32, has_engine=True),
    "prefixes": ServeWorkload(
        streams=8, num_requests=32, own_len=32, new_tokens=32, shared_len=512, num_prefixes=4
    ),
    "cached": ServeWorkload(
        streams=1, num_requests=20, own_len=2000, new_tokens=1, num_sent=2, weft_only=True
    ),
}
PEER_SERVERS = [name for name in SERVERS if name not in WEFT_SERVERS]
RATIOS = {"throughput": "tokens_per_second", "TTFT p50": "ttft_p50", "TPOT p50": "tpot_p50"}
"""Name of a ratio -> key of a row."""
ENGINE_SHARES = {
    "engine alone": 0.85,
    "engine alone, without the CPU time of the generator": 0.93,
}

GOALS = (
    *(
        Goal(f"{workload}: {INT8}/{peer}, {name}", 1.0)
        for workload, one in WORKLOADS.items()
        for peer in PEER_SERVERS
        for name in RATIOS
        if not one.weft_only
    ),
    *(Goal(f"1 stream: {INT8_Q4_0}/llama-server Q4_0, {name}", 1.0) for name in RATIOS),
    *(Goal(f"32 streams: {INT8}/{name}", bound) for name, bound in ENGINE_SHARES.items()),
    Goal(f"cached: {INT8}, TTFT/cold", 0.05, is_maximum=True),
    Goal(f"{INT8}: seconds until ready", 5.0, is_maximum=True),
)


@dataclass(frozen=True)
class ServeBench:
    """Settings of a benchmark."""

    model: str
    workloads: Sequence[str] = tuple(WORKLOADS)
    systems: Sequence[str] = tuple(SERVERS)
    generator: Literal["auto", "vllm", "own"] = "auto"
    peers: Path = Path(".peers")
    repeats: int = 3
    threads: int = 2
    seed: int = 0
    scale: float = 1.0

    def selected(self) -> dict[str, ServeWorkload]:
        """The workloads, scaled; an error for a name that is not known."""
        for name in self.systems:
            pick(SERVERS, name, "system")
        return {
            name: pick(WORKLOADS, name, "workload").scaled(self.scale) for name in self.workloads
        }

    def limits(self) -> ServerLimits:
        workloads = [WARM_UP, *self.selected().values()]
        return ServerLimits(
            self.threads,
            max(workload.length for workload in workloads),
            max(workload.streams for workload in workloads),
        )


@dataclass(frozen=True)
class LoadResult:
    """What the load generator measured in one round; seconds."""

    seconds: float
    cpu_seconds: float
    """Of the generator."""
    num_tokens: int
    ttfts: list[float]
    tpots: list[float]
    engine_seconds: float | None = None
    """The engine alone with the same prompts."""

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds

    def engine_shares(self, threads: int) -> list[float]:
        """The rate relative to the engine alone, as it is and without the generator's part of the
        CPUs, in the order of ENGINE_SHARES."""
        assert self.engine_seconds is not None, "not measured"
        is_shared = set(generator_cpus(threads)) & set(server_cpus(threads))
        own = self.seconds - (self.cpu_seconds / threads if is_shared else 0.0)
        return [self.engine_seconds / self.seconds, self.engine_seconds / own]


@dataclass
class LoadGenerator:
    """The child that sends requests, and the tokens that it sends."""

    child: Peer
    version: str
    tokenizer: Tokenizer
    folder: Path
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.tokenizer.vocab_size
        texts = self.tokenizer.token_bytes(range(size))
        self.ids = [index for index, text in enumerate(texts) if WORD.fullmatch(text)]
        # a tokenizer of another kind: lengths may differ a little after it reads the text
        self.ids = self.ids or list(range(min(100, size // 2), size))

    def run(self, server: Server, workload: ServeWorkload, seed: int) -> LoadResult:
        """One round of a workload; a PeerError if a request fails."""
        prompts = workload.prompts(self.ids, seed)
        file = self.folder / "prompts.jsonl"
        texts = (self.tokenizer.decode(prompt) for prompt in prompts)
        file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        settings = {"port": server.port, "name": NAME, "prompts": str(file)}
        with server.running():
            result = self.child.ask(
                "send", **settings, new_tokens=workload.new_tokens, streams=workload.streams
            )["outputs"]
        errors = result.pop("errors")
        if errors:
            raise PeerError(
                f"{server.name} failed {len(errors)} of {len(prompts)} requests: "
                f"{str(errors[0]).strip().splitlines()[-1][:300]}. Its rows are absent."
            )
        return LoadResult(**result)


@contextmanager
def start_generator(bench: ServeBench, report: Report) -> Iterator[LoadGenerator]:
    """vLLM's if it is installed and can read the model's tokenizer, otherwise our own."""
    python, model = python_of("vllm", bench.peers), None
    if bench.generator == "vllm" and python is None:
        raise UsageError(
            "generator is vllm, which is not installed. Install it with `weft bench peers vllm`, "
            "or use --generator own."
        )
    if bench.generator != "own" and python is not None:
        try:
            model = model_in_format(bench.model, "hf", report)
        except WeftError as error:
            if bench.generator == "vllm":
                raise
            report(f"vLLM's load generator cannot read this model: {error}")
    stem = "http_load" if model is None else "vllm_bench"
    if model is None or python is None:
        python = SYSTEMS[WEFT].python(bench.peers)
        assert python is not None, "Weft is installed"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pinned(generator_cpus(bench.threads)):
            child = stack.enter_context(Peer(stem, python, PEERS_FOLDER / f"{stem}.py", 1))
        loaded = child.ask("load", model=str(model), threads=1, max_len=0)
        name = "vllm bench serve" if stem == "vllm_bench" else "weft.bench.peers.http_load"
        report(f"load generator: {name} {loaded['version']}")
        yield LoadGenerator(
            child, f"{name} {loaded['version']}", load_tokenizer(bench.model), folder
        )


@contextmanager
def start_engines(
    names: Sequence[str], bench: ServeBench, max_len: int
) -> Iterator[dict[str, Peer]]:
    """Weft's engines alone, by the name of the system."""
    with ExitStack() as stack:
        engines: dict[str, Peer] = {}
        for name in names:
            system = SYSTEMS[name]
            python = system.python(bench.peers)
            assert python is not None, "Weft is installed"
            with pinned(server_cpus(bench.threads)):
                peer = stack.enter_context(Peer(name, python, system.file, bench.threads))
            model = str(model_in_format(bench.model, system.format, print))
            settings = {"threads": bench.threads, "max_len": max_len, **system.settings}
            peer.request("load", model=model, **settings)
            engines[name] = peer
        yield engines


@contextmanager
def start_servers(bench: ServeBench, report: Report) -> Iterator[dict[str, Server]]:
    """The servers by name, each ready and stopped. One that fails is reported, of Weft raised."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in bench.systems:
            report(f"starting {name}")
            try:
                server = Server(name, bench.model, bench.limits(), bench.peers, report)
            except PeerError as error:
                if name in EXACT:
                    raise
                report(str(error))
                continue
            servers[name] = stack.enter_context(server)
            server.pause()
            report(f"{name} was ready after {server.ready_seconds:.1f} s")
        yield servers


Rounds = dict[str, list[LoadResult]]
"""The results of each system, by round."""


def run_rounds_of(
    name: str,
    workload: ServeWorkload,
    servers: dict[str, Server],
    generator: LoadGenerator,
    bench: ServeBench,
    engines: Mapping[str, Peer],
    report: Report,
) -> Rounds:
    """All rounds of one workload; in each all servers get the same prompts, in turns."""
    rounds: Rounds = {one: [] for one in servers if one in EXACT or not workload.weft_only}
    report(f"{name}: {', '.join(rounds)}; rounds: {bench.repeats}")
    for number in range(1 if workload.num_sent > 1 else bench.repeats):
        seed = 1000 * bench.seed + 10 * number + list(WORKLOADS).index(name)
        names = list(rounds)
        for system in names if number % 2 else reversed(names):
            try:
                result = generator.run(servers[system], workload, seed)
            except PeerError as error:
                if system in EXACT:
                    raise
                report(str(error))
                del rounds[system]
                continue
            if workload.has_engine and system in engines:
                prompts = workload.prompts(generator.ids, seed)
                settings = {"prompts": prompts, "new_tokens": workload.new_tokens}
                alone = engines[system].request("generate", **settings)
                result = replace(result, engine_seconds=alone.seconds)
            rounds[system].append(result)
    return rounds


def percentile(values: Sequence[float], share: float) -> float:
    """By linear interpolation; 0.0 of no values."""
    ordered = sorted(values) or [0.0]
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def row_of(workload: str, system: str, rounds: Sequence[LoadResult]) -> dict[str, Any]:
    """Medians of the rounds; times in milliseconds."""
    row: dict[str, Any] = {
        "workload": workload,
        "system": system,
        "tokens_per_second": statistics.median(one.rate for one in rounds),
    }
    for name, times in (("ttft", "ttfts"), ("tpot", "tpots")):
        for share in (50, 99):
            values = [1e3 * percentile(getattr(one, times), share / 100) for one in rounds]
            row[f"{name}_p{share}"] = statistics.median(values)
    row["generator_cpu_seconds"] = statistics.median(one.cpu_seconds for one in rounds)
    rates = [one.num_tokens / one.engine_seconds for one in rounds if one.engine_seconds]
    if rates:
        row["engine_tokens_per_second"] = statistics.median(rates)
    row["rounds"] = [
        {**vars(one), "ttfts": sorted(one.ttfts), "tpots": sorted(one.tpots)} for one in rounds
    ]
    return row


def rows_of(name: str, workload: ServeWorkload, rounds: Rounds) -> list[dict[str, Any]]:
    """A row for each system; two if its prompts were sent twice."""
    if workload.num_sent == 1:
        return [row_of(name, system, results) for system, results in rounds.items()]
    rows = []
    for system, results in rounds.items():
        cold, cached = zip(*map(halves_of, results), strict=True)
        rows += [row_of("cold", system, cold), row_of(name, system, cached)]
    return rows


def ratios_of(name: str, workload: ServeWorkload, rounds: Rounds, threads: int) -> dict[str, float]:
    """Weft relative to the others, medians of the rounds; above 1 means faster."""
    ratios: dict[str, float] = {}
    for weft in (one for one in WEFT_SERVERS if rounds.get(one)):
        if workload.num_sent > 1:
            cold, cached = (row_of(name, weft, [half]) for half in halves_of(rounds[weft][0]))
            ratios[f"{name}: {weft}, TTFT/cold"] = cached["ttft_p50"] / cold["ttft_p50"]
            continue
        if rounds[weft][0].engine_seconds is not None:
            shares = zip(*(one.engine_shares(threads) for one in rounds[weft]), strict=True)
            for share, values in zip(ENGINE_SHARES, shares, strict=True):
                ratios[f"{name}: {weft}/{share}"] = statistics.median(values)
        for peer in (one for one in rounds if one not in WEFT_SERVERS):
            pairs = [
                (row_of(name, weft, [ours]), row_of(name, peer, [theirs]))
                for ours, theirs in zip(rounds[weft], rounds[peer], strict=True)
            ]
            for ratio, key in RATIOS.items():
                faster = [ours[key] / theirs[key] for ours, theirs in pairs if theirs[key]]
                if key != "tokens_per_second":
                    faster = [1 / value for value in faster if value]
                if faster:
                    ratios[f"{name}: {weft}/{peer}, {ratio}"] = statistics.median(faster)
    return ratios


def halves_of(result: LoadResult) -> list[LoadResult]:
    """The requests whose prompts were sent for the first time, and those for the second."""
    parts = [result.ttfts[number::2] for number in range(2)]
    return [replace(result, ttfts=part, seconds=sum(part), num_tokens=len(part)) for part in parts]


def measure(bench: ServeBench, report: Report) -> dict[str, Any]:
    """{"rows", "ratios", "goals", "machine", "settings"}; see docs/bench.md."""
    workloads, limits = bench.selected(), bench.limits()
    check_decoder(bench.model, limits.max_len)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        generator = stack.enter_context(start_generator(bench, report))
        servers = stack.enter_context(start_servers(bench, report))
        with_engine = [one for one in servers if one in EXACT]
        if not any(workload.has_engine for workload in workloads.values()):
            with_engine = []
        engines = stack.enter_context(start_engines(with_engine, bench, limits.max_len))
        for server in list(servers.values()):
            generator.run(server, WARM_UP.scaled(min(1.0, bench.scale)), bench.seed)
        for name, workload in workloads.items():
            rounds = run_rounds_of(name, workload, servers, generator, bench, engines, report)
            rows += rows_of(name, workload, rounds)
            ratios |= ratios_of(name, workload, rounds, bench.threads)
        versions = {name: server.version for name, server in servers.items()}
        for row in rows:
            row["ready_seconds"] = servers[row["system"]].ready_seconds
        ready = {one: servers[one].ready_seconds for one in servers if one in EXACT}
    ratios |= {f"{name}: seconds until ready": seconds for name, seconds in ready.items()}
    versions["load generator"] = generator.version
    keys = ("model", "repeats", "seed", "scale")
    return {
        "rows": rows,
        "ratios": ratios,
        "goals": check_goals(GOALS, ratios),
        "machine": {**machine(), "threads": bench.threads, "versions": versions},
        "settings": {key: getattr(bench, key) for key in keys},
    }
