"""Prometheus metrics with vLLM's names and buckets, so that its dashboards and gateways work.

    metrics = Metrics(service)
    service.sinks.append(metrics.record)        counters and histograms: a request has ended
    metrics.render()                            the text of GET /metrics

Gauges and the counters of the engine are read when they are asked for, from numbers that the
scheduler keeps anyway. All have the label model_name. Differs from vLLM: the names of two metrics
that need a hook in each step (iteration_tokens_total, kv_block_*) and those of LoRA and sleep
modes are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from weft.engine.scheduling.scheduler_state import SchedulerLoad
from weft.serve.context import RequestRecord, Service
from weft.serve.served_model import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "model_name"

FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
WHOLE_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
NUM_SAMPLES = (1, 2, 5, 10, 20)

TIMES: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Time to first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Time between two outputs of a text.", BETWEEN_TOKENS),
    "request_time_per_output_token_seconds": (
        "Mean time per new token of a request.",
        BETWEEN_TOKENS,
    ),
    "e2e_request_latency_seconds": ("Time of a request as a whole.", WHOLE_REQUEST),
    "request_queue_time_seconds": ("Time until the engine began.", WHOLE_REQUEST),
    "request_inference_time_seconds": ("Time in the engine.", WHOLE_REQUEST),
    "request_prefill_time_seconds": ("Time from there to the first token.", WHOLE_REQUEST),
    "request_decode_time_seconds": ("Time from the first to the last token.", WHOLE_REQUEST),
}
SIZES = {
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "New tokens of a request.",
    "request_max_num_generation_tokens": "New tokens of its longest text, at most.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens that were not cached.",
}
TOTALS = {
    "prompt_tokens": "Prompt tokens.",
    "prompt_tokens_cached": "Prompt tokens that were in the prefix cache.",
    "generation_tokens": "New tokens.",
}
FINISHED = {"end": "stop", "stop": "stop", "length": "length", "disconnect": "abort"}
"""Finish reasons in vLLM's words."""


def one_two_five(highest: int) -> list[float]:
    """1, 2, 5, 10, 20, ... up to `highest`."""
    values = [step * 10**power for power in range(12) for step in (1, 2, 5)]
    return [float(value) for value in values if value <= max(1, highest)]


class Metrics:
    """The metrics of one service."""

    def __init__(self, service: Service) -> None:
        self.service, self.prefix = service, service.config.metrics_prefix
        self.registry = CollectorRegistry()
        self.times = {
            name: self.histogram(name, text, buckets) for name, (text, buckets) in TIMES.items()
        }
        buckets = one_two_five(service.config.max_model_len or 1_000_000)
        self.sizes = {name: self.histogram(name, text, buckets) for name, text in SIZES.items()}
        self.num_samples = self.histogram("request_params_n", "n of a request.", NUM_SAMPLES)
        self.totals = {name: self.counter(name, text) for name, text in TOTALS.items()}
        self.finished = self.counter("request_success", "Ended requests.", "finished_reason")
        self.registry.register(EngineMetrics(self))

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"{self.prefix}:{name}", text, [LABEL], buckets=buckets, registry=self.registry
        )

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{self.prefix}:{name}", text, [LABEL, *labels], registry=self.registry)

    def record(self, record: RequestRecord) -> None:
        """A sink of the service: count a request that has ended."""
        if not record.model or record.model not in self.service.models.models:
            return
        reason = FINISHED.get(record.finish_reason, "error" if record.error else "stop")
        self.finished.labels(record.model, reason).inc()
        self.totals["prompt_tokens"].labels(record.model).inc(record.prompt_tokens)
        self.totals["prompt_tokens_cached"].labels(record.model).inc(record.cached_tokens)
        self.totals["generation_tokens"].labels(record.model).inc(record.completion_tokens)
        for name, value in durations(record).items():
            self.times[name].labels(record.model).observe(value)
        for gap in record.token_gaps:
            self.times["inter_token_latency_seconds"].labels(record.model).observe(gap)
        if record.generation is not None:
            self.record_sizes(record)

    def record_sizes(self, record: RequestRecord) -> None:
        assert record.generation is not None, "no generation"
        requests = record.generation.requests
        longest = max((one.max_tokens for one in requests), default=0)
        sizes = {
            "request_prompt_tokens": record.prompt_tokens,
            "request_generation_tokens": record.completion_tokens,
            "request_max_num_generation_tokens": min(longest, record.completion_tokens),
            "request_params_max_tokens": longest,
            "request_prefill_kv_computed_tokens": record.prompt_tokens - record.cached_tokens,
        }
        for name, value in sizes.items():
            self.sizes[name].labels(record.model).observe(value)
        self.num_samples.labels(record.model).observe(max((one.n for one in requests), default=1))

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def durations(record: RequestRecord) -> dict[str, float]:
    """The times of a request that are known."""
    first, last, admitted = record.first_token_at, record.last_token_at, record.admitted_at
    times = {
        "time_to_first_token_seconds": record.first_token_seconds,
        "e2e_request_latency_seconds": record.total_seconds,
        "request_queue_time_seconds": record.queue_seconds,
    }
    if first is not None and last is not None:
        times["request_decode_time_seconds"] = last - first
        if record.completion_tokens > 1:
            mean = (last - first) / (record.completion_tokens - 1)
            times["request_time_per_output_token_seconds"] = mean
        if admitted is not None:
            times["request_inference_time_seconds"] = last - admitted
            times["request_prefill_time_seconds"] = first - admitted
    return {name: value for name, value in times.items() if value is not None}


class EngineMetrics(Collector):
    """Gauges and counters of the engines, read when they are asked for."""

    def __init__(self, metrics: Metrics) -> None:
        self.service, self.prefix = metrics.service, metrics.prefix

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """None: the registry then does not collect to learn the names."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        models = list(self.service.models.models.values())
        for name, text, values in gauges(models):
            family = GaugeMetricFamily(f"{self.prefix}:{name}", text, labels=[LABEL])
            for served, value in zip(models, values, strict=True):
                family.add_metric([served.name], value)
            yield family
        yield self.waiting_by_reason(models)
        yield self.cache_config(models)
        for name, text, values in counters(models):
            counter = CounterMetricFamily(f"{self.prefix}:{name}", text, labels=[LABEL])
            for served, value in zip(models, values, strict=True):
                counter.add_metric([served.name], value)
            yield counter

    def waiting_by_reason(self, models: Sequence[ServedModel]) -> GaugeMetricFamily:
        name = f"{self.prefix}:num_requests_waiting_by_reason"
        family = GaugeMetricFamily(name, "Waiting requests.", labels=[LABEL, "reason"])
        for served in models:
            family.add_metric([served.name, "capacity"], load_of(served).num_waiting)
            family.add_metric([served.name, "deferred"], 0)
        return family

    def cache_config(self, models: Sequence[ServedModel]) -> GaugeMetricFamily:
        labels = [LABEL, "block_size", "num_gpu_blocks", "enable_prefix_caching"]
        family = GaugeMetricFamily(
            f"{self.prefix}:cache_config_info", "Settings of the KV cache.", labels=labels
        )
        for served in models:
            config, pool = served.loaded.engine_config, served.engine.engine.kv_cache.pool
            has_cache = str(config.prefix_cache != "none")
            values = [served.name, str(pool.page_size), str(pool.num_usable), has_cache]
            family.add_metric(values, 1)
        return family


Values = tuple[str, str, Sequence[float]]
"""Name, meaning, and one value for each model."""


def load_of(served: ServedModel) -> SchedulerLoad:
    return served.engine.engine.scheduler.load()


def page_usage(served: ServedModel) -> float:
    """Share of the pages that running requests hold."""
    pool = served.engine.engine.kv_cache.pool
    return 1.0 - (pool.num_free + pool.num_evictable) / max(1, pool.num_usable)


def gauges(models: Sequence[ServedModel]) -> Iterator[Values]:
    loads = [load_of(served) for served in models]
    yield "num_requests_running", "Running requests.", [one.num_running for one in loads]
    yield "num_requests_waiting", "Waiting requests.", [one.num_waiting for one in loads]
    usage = [page_usage(served) for served in models]
    yield "kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", usage


def counters(models: Sequence[ServedModel]) -> Iterator[Values]:
    counts = [served.engine.engine.scheduler.statistics for served in models]
    hits = [one.cached_tokens for one in counts]
    yield "prefix_cache_queries", "Prompt tokens looked up.", [one.prompt_tokens for one in counts]
    yield "prefix_cache_hits", "Prompt tokens that were cached.", hits
    yield "num_preemptions", "Preempted requests.", [one.preempted for one in counts]
    drafts = [one.draft_tokens for one in counts]
    yield "spec_decode_num_draft_tokens", "Drafted tokens.", drafts
    accepted = [one.accepted_tokens for one in counts]
    yield "spec_decode_num_accepted_tokens", "Accepted drafts.", accepted
