"""Response classes of the routes for operators, for /openapi.json and tests."""

from __future__ import annotations

from typing import Any, Literal

from weft.serve.openai_results import Result


class Health(Result):
    """The response of /health."""

    status: Literal["ok"]
    ready: bool


class Readiness(Result):
    """The response of /ready."""

    status: Literal["ready"]


class ModelLoad(Result):
    """The work of one model."""

    model: str
    dp_rank: int
    timestamp: float
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_waiting_uncached_tokens: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    prefill_throughput: float
    gen_throughput: float
    max_running_requests: int


class TotalLoad(Result):
    """The work of all models."""

    total_running_reqs: int
    total_waiting_reqs: int
    total_reqs: int
    avg_token_usage: float


class ServerLoad(Result):
    """The response of /v1/loads."""

    timestamp: float
    version: str
    dp_rank_count: int
    loads: list[ModelLoad]
    aggregate: TotalLoad


class ExampleText(Result):
    """An input to try a model with, and its translation if the model translates."""

    text: str
    target: str | None = None


class ModelInfo(Result):
    """A model of /server_info; `is_loaded`: most fields are known when it is."""

    path: str
    is_loaded: bool
    kind: str | None = None
    max_model_len: int | None = None
    tool_format: str | None = None
    can_chat: bool | None = None
    languages: tuple[str, str] | None = None
    """Codes of source and target of a translation model, if they are known."""
    architecture: dict[str, Any] | None = None
    """Sizes and kinds of its components: parameters, layers, heads, kv_heads, width, ..."""
    examples: list[ExampleText] | None = None
    """Inputs of its validation data."""
    defaults: dict[str, Any] | None = None
    generation_config: dict[str, Any] | None = None
    engine: dict[str, Any] | None = None
    is_reserving: bool | None = None
    """With --reserve: whether the memory of the KV cache is still being assigned."""


class ServerInfo(Result):
    """The response of /server_info."""

    version: str
    uptime_seconds: float
    settings: dict[str, Any]
    has_api_keys: bool
    models: dict[str, ModelInfo]


class WeftVersion(Result):
    """The response of /version."""

    version: str
