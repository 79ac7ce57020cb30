"""Latency under mixed load: one stream decodes while a long prompt arrives.

    ttft_alone   time to the first token (TTFT) of the prompt when nothing else runs
    ttft         the same beside the stream, which goes on until then
    itl_p95      time between two tokens of the stream (ITL) meanwhile: 95th percentile
    itl_max      and maximum
    itl_alone    the same tokens of a stream without the prompt: the median

The engine runs in this process, and its clock is passed in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.bench.peers.systems import INT8, WEFT
from weft.engine.engine import Engine
from weft.engine.loaded_model import load
from weft.engine.request import GenerationRequest

PROMPT_LEN, STREAM_PROMPT_LEN, NUM_BEFORE = 4000, 16, 50
Clock = Callable[[], float]


@dataclass(frozen=True)
class MixedLatency:
    """Seconds, and the three ratios."""

    itl_alone: float
    itl_p95: float
    itl_max: float
    ttft_alone: float
    ttft: float

    def row(self, system: str) -> dict[str, Any]:
        ratios = {
            "p95_ratio": self.itl_p95 / self.itl_alone,
            "max_ratio": self.itl_max / self.itl_alone,
            "ttft_ratio": self.ttft / self.ttft_alone,
        }
        return {"workload": "latency", "system": system, **vars(self), **ratios}


class LatencyRun:
    """The requests of one measurement."""

    def __init__(self, engine: Engine, seed: int = 0, now: Clock = time.perf_counter) -> None:
        self.engine, self.now, self.rng = engine, now, random.Random(seed)

    def submit(self, length: int, new_tokens: int, is_streamed: bool = False) -> str:
        """A random prompt."""
        ids = range(100, self.engine.model.config.vocab_size)
        prompt = tuple(self.rng.choices(ids, k=length))
        return self.engine.submit(GenerationRequest(prompt, new_tokens, is_streamed=is_streamed))

    def output_times(self, request_id: str, limit: int | None = None) -> list[float]:
        """The times of the next outputs of a request, up to its end."""
        times: list[float] = []
        while self.engine.is_active(request_id) and len(times) != limit:
            times += [self.now() for one in self.engine.step() if one.request_id == request_id]
        return times

    def ttft(self, length: int) -> float:
        """Of a prompt alone."""
        begin = self.now()
        return self.output_times(self.submit(length, 1))[0] - begin

    def measure(self, prompt_len: int = PROMPT_LEN) -> MixedLatency:
        """The prompt alone, both, and the stream alone."""
        self.ttft(300)
        alone = self.ttft(prompt_len)
        # each step computes more than one token of the prompt: the stream does not end before it
        stream = self.submit(STREAM_PROMPT_LEN, NUM_BEFORE + prompt_len, is_streamed=True)
        before = self.output_times(stream, NUM_BEFORE)
        begin, prompt = self.now(), self.submit(prompt_len, 1)
        first, during = 0.0, [before[-1]]
        while not first:
            for output in self.engine.step():
                if output.request_id == prompt:
                    first = self.now()
                else:
                    during.append(self.now())
        self.engine.abort(stream)
        gaps = sorted(intervals(during))
        p95 = gaps[min(len(gaps) - 1, int(0.95 * len(gaps)))]
        return MixedLatency(self.itl_alone(len(gaps)), p95, gaps[-1], alone, first - begin)

    def itl_alone(self, number: int) -> float:
        """The median for so many tokens of a stream, after the first NUM_BEFORE."""
        stream = self.submit(STREAM_PROMPT_LEN, NUM_BEFORE + number, is_streamed=True)
        return median(intervals(self.output_times(stream)[NUM_BEFORE - 1 :]))


def intervals(times: list[float]) -> list[float]:
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def rows(model: str, seed: int, scale: float) -> list[dict[str, Any]]:
    """One row for float32 and one for int8 activations."""
    result = []
    for system, activations in ((WEFT, "float32"), (INT8, "int8")):
        loaded = load(model, engine={"activations": activations, "reserve": True})
        run = LatencyRun(loaded.client.engine, seed)
        result.append(run.measure(max(64, round(scale * PROMPT_LEN))).row(system))
    return result


def ratios(measured: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers that goals are defined for."""
    names = {"p95_ratio": "ITL p95", "max_ratio": "ITL maximum", "ttft_ratio": "TTFT of the prompt"}
    return {
        f"latency: {row['system']}, {name}/alone": row[key]
        for row in measured
        if row["workload"] == "latency"
        for key, name in names.items()
    }
