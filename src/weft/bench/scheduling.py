"""The scheduler without a model: seed -> rows of hit rates, memory use and time per plan.

    tree      prompts that share prefixes like a tree, in random order: the prefix cache's hit rate,
              and that of the best possible order
    mixed     conversations of many lengths: the share of rows in allocated pages that have a token
    waiting   1,000 waiting requests: milliseconds for the plan of a step

The scheduler, prefix cache and pages are the real ones; sampled tokens are random. The number of
pages is that of one gigabyte for SmolLM2-135M in float32.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from weft.bench.peers.systems import WEFT, WITHOUT_CACHE
from weft.cache import PREFIX_CACHES
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.plan import Appended
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request
from weft.engine.stats import optimal_hits

PAGE_SIZE, NUM_PAGES, VOCABULARY = 16, 1456, 49152
NUM_WAITING = 1000
Rows = list[dict[str, Any]]


class SchedulerRun:
    """A scheduler with its pages and requests; sampled tokens are random."""

    def __init__(self, seed: int, prefix: str = "radix", max_running: int = 256) -> None:
        self.rng = random.Random(seed)
        pool = PagePool(NUM_PAGES, PAGE_SIZE)
        kv_cache = KVCacheManager(KVCacheLayout((KVCacheGroup((0,)),)), pool, PREFIX_CACHES[prefix])
        config = SchedulerConfig(max_running=max_running, max_len=8192)
        self.scheduler = Scheduler(config, kv_cache)
        self.requests: list[Request] = []
        self.plan_seconds = self.commit_seconds = 0.0

    def tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self.rng.choices(range(VOCABULARY), k=length))

    def add(self, prompt: tuple[int, ...], new_tokens: int) -> None:
        self.requests.append(Request(f"r{len(self.requests)}", prompt, new_tokens))
        self.scheduler.add(self.requests[-1])

    def step(self) -> None:
        begin = time.perf_counter()
        plan = self.scheduler.schedule()
        self.plan_seconds += time.perf_counter() - begin
        appended = {c.sequence_id: Appended(self.tokens(1)) for c in plan.chunks if c.num_samples}
        begin = time.perf_counter()
        self.scheduler.commit(plan, appended)
        self.commit_seconds += time.perf_counter() - begin

    def run(self, observe: Callable[[], None] = lambda: None) -> None:
        """Run to the end; `observe` is called every 8 steps while requests are waiting."""
        while not self.scheduler.is_idle:
            self.step()
            if self.scheduler.num_waiting and self.scheduler.statistics.steps % 8 == 0:
                observe()


def tree(seed: int) -> Rows:
    """400 requests: one of 8 instructions, one of its 6 documents, and a question."""
    run = SchedulerRun(seed)
    roots = [run.tokens(320) for _ in range(8)]
    branches = [root + run.tokens(160) for root in roots for _ in range(6)]
    for _ in range(400):
        run.add(run.rng.choice(branches) + run.tokens(run.rng.randint(8, 56)), 32)
    run.run()
    stats = run.scheduler.statistics
    best = optimal_hits(run.requests, PAGE_SIZE) / stats.prompt_tokens
    row = {"hit_rate": stats.hit_rate, "optimal_hit_rate": best}
    return [{"workload": "tree", "system": WEFT, **row}]


def mixed(seed: int, conversations: int = 300) -> Rows:
    """Conversations of ShareGPT's lengths (mean 161 in, 338 out: Kwon 2023). Without the prefix
    cache only running requests have pages; with it, full pages of finished ones stay too."""
    systems = ((WITHOUT_CACHE, "none"), (WEFT, "radix"))
    shares = {
        name: mixed_share(SchedulerRun(seed, prefix), conversations) for name, prefix in systems
    }
    return [{"workload": "mixed", "system": name, "row_share": one} for name, one in shares.items()]


def mixed_share(run: SchedulerRun, conversations: int) -> float:
    """The mean over the run, while requests are waiting."""
    shares: list[float] = []
    for _ in range(conversations):
        # log-normal: the logarithms have these means and a standard deviation of 1
        lengths = [run.rng.lognormvariate(mean, 1.0) for mean in (4.58, 5.32)]
        prompt_len, new_tokens = (min(2048, max(4, round(length))) for length in lengths)
        run.add(run.tokens(prompt_len), new_tokens)
    run.run(lambda: shares.append(run.scheduler.state.row_share()))
    return sum(shares) / len(shares)


def waiting(seed: int) -> Rows:
    """64 running and 1,000 waiting requests; finished ones are replaced by new ones."""
    run = SchedulerRun(seed, max_running=64)
    heads = [run.tokens(300) for _ in range(20)]

    def fill() -> None:
        while run.scheduler.num_waiting < NUM_WAITING:
            head = run.rng.choice(heads)[: run.rng.choice((100, 200, 300))]
            run.add(head + run.tokens(100), run.rng.randint(5, 60))

    fill()
    for _ in range(20):
        run.step()
    run.plan_seconds = run.commit_seconds = 0.0
    steps = 300
    for _ in range(steps):
        fill()
        run.step()
    return [
        {
            "workload": "waiting",
            "system": WEFT,
            "milliseconds": 1000 * run.plan_seconds / steps,
            "commit_milliseconds": 1000 * run.commit_seconds / steps,
            "num_waiting": NUM_WAITING,
        }
    ]


def ratios(rows: Rows) -> dict[str, float]:
    """The numbers that goals are defined for."""
    values: dict[str, float] = {}
    for row in rows:
        if row["workload"] == "tree":
            values["tree: hits/optimal order's"] = row["hit_rate"] / row["optimal_hit_rate"]
        if row["workload"] == "mixed" and row["system"] == WITHOUT_CACHE:
            values["mixed: rows with tokens/rows held"] = row["row_share"]
        if row["workload"] == "waiting":
            values["waiting: milliseconds a plan"] = row["milliseconds"]
    return values
