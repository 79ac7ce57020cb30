"""Two replicas of `weft serve` behind smg, as docs/scale.md describes, with a tiny model.

    with replicas(folder) as servers, Gateway(servers, "cache_aware") as gateway: ...

smg is in an environment of its own (`make clients`). python -m tests.stories.gateway measures the
hit rates of docs/scale.md.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.clients.install import python_of
from tests.engine.tiny import tiny_folder
from tests.serve.process import START_SECONDS, ServeProcess

MODEL = "model"
NUM_FAMILIES, REQUESTS_PER_FAMILY, NUM_CLIENTS = 12, 10, 4
PREFIX_WORDS, MAX_LEN = 300, 600
CACHE_GIB = "0.0012"
"""Of each replica: about 8 of the 12 prefixes."""
WORDS = ["the", "a", "cat", "dog", "sat", "ate", "two", "on", "mat", "apples"]


class Gateway:
    """A running smg. `with` ends it."""

    def __init__(self, servers: Sequence[ServeProcess], policy: str) -> None:
        ports = [free_port(), free_port()]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        urls = [server.url for server in servers]
        command = [str(python_of("gateway").with_name("smg")), "launch", "--host", "127.0.0.1"]
        command += ["--port", str(ports[0]), "--prometheus-host", "127.0.0.1"]
        command += ["--prometheus-port", str(ports[1]), "--policy", policy, "--worker-urls", *urls]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=kept)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=90)
        try:
            self.wait_for_workers(len(servers))
        except BaseException:
            self.close()
            raise

    def wait_for_workers(self, count: int) -> None:
        end = time.monotonic() + START_SECONDS
        while self.num_workers() < count:
            assert time.monotonic() < end and self.process.poll() is None, self.log_text()
            time.sleep(0.05)

    def num_workers(self) -> int:
        """Replicas that requests are sent to."""
        try:
            workers = self.client.get("/workers").json()["workers"]
        except (httpx.TransportError, ValueError, KeyError):  # it is not listening yet
            return 0
        return sum(one["is_healthy"] for one in workers)

    def complete(self, prompt: str, **changes: Any) -> dict[str, Any]:
        """The response of /v1/completions."""
        answer = self.client.post("/v1/completions", json=body_of(prompt, **changes))
        assert answer.status_code == 200, f"{answer.status_code} {answer.text}"
        return answer.json()

    def log_text(self) -> str:
        self.log.seek(0)
        return self.log.read()[-4000:]

    def close(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGKILL)  # SIGTERM waits 5 s for load balancers
        self.process.wait()
        self.log.close()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def replicas(folder: Path, cache: str = "0.05") -> Iterator[list[ServeProcess]]:
    """Two servers of one model, which load at the same time."""
    with (
        ServeProcess(folder, "--cache", cache) as one,
        ServeProcess(folder, "--cache", cache) as two,
    ):
        one.wait_ready()
        two.wait_ready()
        yield [one, two]


def body_of(prompt: str, **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "seed": 5, "ignore_eos": True}
    return {**body, **changes}


def counter(server: ServeProcess, name: str, label: str = "") -> float:
    """The sum of a metric over its labels, or over those that contain a text."""
    text = server.client.get("/metrics").text
    values = re.findall(rf"^vllm:{name}({{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in values if label in labels)


def num_served(server: ServeProcess) -> int:
    """Requests that a replica has completed; body_of asks for a fixed number of tokens."""
    return int(counter(server, "request_success_total", 'finished_reason="length"'))


def hit_rate(servers: Sequence[ServeProcess], before: Sequence[tuple[float, float]]) -> float:
    """Cached tokens by prompt tokens, of what was served since `before`."""
    after = [cache_counts(server) for server in servers]
    hits, queries = (
        sum(new[place] - old[place] for new, old in zip(after, before, strict=True))
        for place in (0, 1)
    )
    return hits / queries


def cache_counts(server: ServeProcess) -> tuple[float, float]:
    """Tokens found in the prefix cache, and tokens looked for."""
    names = ("prefix_cache_hits_total", "prefix_cache_queries_total")
    return counter(server, names[0]), counter(server, names[1])


def workload(seed: int) -> list[str]:
    """Prompts of families with a common prefix each, in a random order."""
    rng = random.Random(seed)
    prefixes = [" ".join(rng.choices(WORDS, k=PREFIX_WORDS)) for _ in range(NUM_FAMILIES)]
    prompts = [
        f"{prefix} {' '.join(rng.choices(WORDS, k=6))}"
        for prefix in prefixes
        for _ in range(REQUESTS_PER_FAMILY)
    ]
    rng.shuffle(prompts)
    return prompts


def measure(folder: Path, policy: str, seed: int) -> tuple[float, list[int]]:
    """Hit rate of the workload, and the requests that each replica has served."""
    with replicas(folder, CACHE_GIB) as servers, Gateway(servers, policy) as gateway:
        before = [cache_counts(server) for server in servers]
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            list(pool.map(gateway.complete, workload(seed)))
        return hit_rate(servers, before), [num_served(server) for server in servers]


def main() -> int:
    with tempfile.TemporaryDirectory() as path:
        folder = tiny_folder(Path(path) / MODEL, "decoder", max_len=MAX_LEN)
        for policy in ("cache_aware", "round_robin", "random"):
            for seed in range(3):
                rate, served = measure(folder, policy, seed)
                print(
                    f"{policy:12} seed {seed}: hit rate {rate:.1%}, requests {served}", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
