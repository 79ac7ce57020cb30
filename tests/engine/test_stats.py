"""What an engine says of itself: hits beside the best possible ones, pages, preemptions."""

from __future__ import annotations

import itertools
import json
import random
import time

from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.sequence import Request
from weft.engine.stats import Prompt, PromptLog, best_hits, optimal_hits

from .tiny import tiny


def engine_of(kind: str = "decoder", **config: object) -> Engine:
    checkpoint, settings = tiny(kind), {"page_size": 4, "cache_gib": 1e-3, **config}
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**settings))


def finish(engine: Engine) -> None:
    while not engine.is_idle:
        engine.step()


def test_hits_are_reported_with_those_of_the_best_order() -> None:
    engine = engine_of(max_running=1)
    shared = (5, 6, 7, 8, 9, 10, 11, 12)
    engine.submit(GenerationRequest((*shared, 20), 5))
    engine.step()
    now = engine.statistics()
    assert (now.requests, now.running, now.waiting, now.pages_in_use) == (1, 1, 0, 3)
    assert now.row_share == 9 / 12 and now.hit_rate == now.optimal_hit_rate == 0
    finish(engine)
    engine.submit(GenerationRequest((*shared, 21), 5))
    engine.submit(GenerationRequest((*shared[:4], 22), 5, salt="x"))
    finish(engine)
    now = engine.statistics()
    assert (now.prompt_tokens, now.hit_tokens, now.recent_requests) == (23, 8, 3)
    assert now.hit_rate == now.recent_hit_rate == now.optimal_hit_rate == 8 / 23
    assert now.pages_in_use == 0 and now.pages_cached == engine.kv_cache.pool.num_evictable > 3
    assert now.row_share == 1.0 and now.preemptions == now.evictions == 0
    plain = json.loads(json.dumps(now.to_json()))
    assert plain["hit_tokens"] == 8 and plain["pages"] == engine.kv_cache.pool.num_usable


def test_a_bad_order_shows_beside_the_best_one() -> None:
    """Three families in turn, in a pool that holds two of them."""
    engine = engine_of(cache_gib=1e-9)
    for number in range(9):
        first = 5 + 25 * (number % 3)
        engine.submit(GenerationRequest((*range(first, first + 24), 100 + number), 15))
        finish(engine)
    now = engine.statistics()
    assert now.evictions > 0 and now.optimal_hit_rate == 6 * 24 / (9 * 25)
    assert now.hit_rate < now.optimal_hit_rate


def test_preemptions_and_sources_are_counted() -> None:
    engine = engine_of("encoder-decoder", preempt_every=3)
    for _ in range(2):
        engine.submit(GenerationRequest((1, 5), 8, (7, 8, 9)))
        finish(engine)
    now = engine.statistics()
    assert now.preemptions >= 2 and (now.encoded_tokens, now.source_hit_tokens) == (3, 3)
    assert now.pages_cached == 3 and now.row_share == 11 / 12, "the source's page has a free row"


def hits_in_order(prompts: list[tuple[int, ...]], page_size: int) -> int:
    """With a cache that never forgets."""
    stored: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in prompts:
        borders = range(0, len(prompt), page_size)
        hits += max(n for n in borders if n == 0 or prompt[:n] in stored)
        stored |= {prompt[:n] for n in range(0, len(prompt) + 1, page_size)}
    return hits


def test_no_order_finds_more_than_the_best_one() -> None:
    rng = random.Random(4)
    for _ in range(40):
        prompts = [tuple(rng.choices((1, 2), k=rng.randint(1, 7))) for _ in range(5)]
        requests = [Request(f"r{i}", prompt) for i, prompt in enumerate(prompts)]
        orders = (list(order) for order in itertools.permutations(prompts))
        assert optimal_hits(requests, 2) == max(hits_in_order(order, 2) for order in orders)


def test_the_log_of_prompts_stays_small_and_the_optimum_cheap() -> None:
    rng, log = random.Random(1), PromptLog(max_prompts=1000, max_tokens=100_000)
    heads = [rng.choices(range(50_000), k=400) for _ in range(20)]
    for i in range(3000):
        prompt = (*rng.choice(heads)[: rng.choice([0, 200, 400])], *rng.choices(range(9), k=50))
        log.add(Prompt.of(Request(f"r{i}", prompt), num_cached=7))
    assert len(log.prompts) < 1000 and log.num_tokens <= 100_000
    assert log.num_tokens == sum(prompt.num_tokens for prompt in log.prompts)
    assert log.num_cached == 7 * len(log.prompts)
    assert sum(len(prompt.tokens) for prompt in log.prompts) == 4 * log.num_tokens
    started = time.process_time()
    assert 0 < best_hits(log.prompts, 16) < log.num_tokens
    assert time.process_time() - started < 0.5
    log.add(Prompt.of(Request("long", tuple(range(200_000)))))
    assert len(log.prompts) == 1, "one prompt is always kept"
