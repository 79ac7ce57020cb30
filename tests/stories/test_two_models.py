"""SmolLM2 twice on one engine thread: what a stream of the first notices of the second. Times are
processor times of that thread, as other processes may use the machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from threading import Event

import pytest
import torch

import weft
from weft.checkpoint.hub import pull
from weft.engine.async_engine import AsyncEngine
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.engine_thread import EngineThread
from weft.engine.request import GenerationRequest, RequestOutput

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

Load = Callable[[], list[GenerationRequest]]

SECONDS = 5.0
NUM_ROUNDS = 3
"""The median counts: processor times depend on what else uses the caches of the machine."""
MAX_RATIO = 2.1
"""Equal shares double the time per token; the rest is for the measurement."""
STREAM = GenerationRequest((504, 2016, 28), 2000, is_streamed=True)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[AsyncEngine]]:
    """Two copies of SmolLM2 whose step times are known, as after the warm-up of a server."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    pull("smollm2", print)
    thread = EngineThread(now=time.thread_time)
    config = EngineConfig(cache_gib=0.7, activations="int8", reserve=True)
    models = [weft.load("smollm2", engine=config) for _ in range(2)]
    made = [
        AsyncEngine(Engine(one.model, one.tokenizer, config, now=time.thread_time), thread=thread)
        for one in models
    ]
    for engine in made:
        for request in (GenerationRequest((504,) * 64, 8), STREAM):
            StreamTimes(engine, request, 8).wait()
    yield made
    thread.close()
    torch.set_num_threads(number)


class StreamTimes:
    """Runs a stream for some tokens, or for some seconds after its first; when each was there."""

    def __init__(
        self,
        engine: AsyncEngine,
        request: GenerationRequest,
        num_tokens: int | None = None,
        seconds: float = float("inf"),
    ) -> None:
        self.engine, self.num_tokens, self.seconds = engine, num_tokens, seconds
        self.times: list[float] = []
        self.shares = [member.share for member in engine.engine_thread.members]
        self.used: list[list[float]] = []
        """Seconds that each engine of the thread has used, at each output."""
        self.is_done = Event()
        self.id = engine.submit(request, self.receive)

    def receive(self, output: RequestOutput) -> None:
        """Engine thread: an output has been computed."""
        assert output.error is None, output.error
        self.times += [time.thread_time()] * len(output.tokens)
        self.used.append([share.seconds for share in self.shares])
        is_late = self.times[-1] - self.times[0] > self.seconds
        if is_late or len(self.times) == self.num_tokens or output.finish is not None:
            self.engine.abort(self.id)
            self.is_done.set()

    def wait(self) -> StreamTimes:
        assert self.is_done.wait(600), "the stream did not end"
        return self

    @property
    def token_seconds(self) -> float:
        """Mean time per token, without the prompt."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def decodes() -> list[GenerationRequest]:
    return [GenerationRequest((504 + n, 2016), 4000) for n in range(16)]


def prompts() -> list[GenerationRequest]:
    rng = random.Random(0)
    return [GenerationRequest(tuple(rng.choices(range(200, 40_000), k=1900)), 4) for _ in range(40)]


def time_per_token(first: AsyncEngine, second: AsyncEngine, load: Load) -> tuple[float, float]:
    """Time per token of the first beside the second, relative to that of the same tokens alone;
    and the first one's share of the time."""
    ids = [second.submit(request, lambda output: None) for request in load()]
    beside = StreamTimes(first, STREAM, seconds=SECONDS).wait()
    assert second.engine.is_active(ids[-1]), "the second model had too little work"
    for request_id in ids:
        second.abort(request_id)
    second.call(lambda engine: None).result()
    alone = StreamTimes(first, STREAM, len(beside.times)).wait()
    used = [end - begin for begin, end in zip(beside.used[0], beside.used[-1], strict=True)]
    print(f"alone {alone.token_seconds:.4f} s, beside {beside.token_seconds:.4f} s, used {used}")
    return beside.token_seconds / alone.token_seconds, used[0] / sum(used)


@pytest.mark.parametrize("load", [decodes, prompts])
def test_beside_a_busy_model_the_time_per_token_at_most_doubles(engines, load: Load) -> None:
    rounds = [time_per_token(*engines, load) for _ in range(NUM_ROUNDS)]
    ratio, shares = median(one for one, _ in rounds), [share for _, share in rounds]
    print(f"{load.__name__}: time per token {ratio:.3f}, shares {shares}")
    assert shares == pytest.approx([0.5] * NUM_ROUNDS, abs=0.03)
    assert ratio <= MAX_RATIO
    assert ratio >= 1.5, "the second model did not get its share"
