"""Response classes of Ollama's routes, for /openapi.json and for tests that check responses.

The objects of /api/chat and /api/generate are also the lines of their streams: counts and times are
in the last one.
"""

from __future__ import annotations

from typing import Any, Literal

from weft.serve.openai_results import ChatLogprob, Result


class OllamaFunction(Result):
    """Name and arguments of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(Result):
    """A call of a function."""

    id: str
    function: OllamaFunction


class OllamaAnswer(Result):
    """The assistant's message, or a part of it."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaToolCall] | None = None


class OllamaPart(Result):
    """Fields of the objects of /api/chat and /api/generate; times are in nanoseconds."""

    model: str
    created_at: str
    logprobs: list[ChatLogprob] | None = None
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatResult(OllamaPart):
    """The response of /api/chat."""

    message: OllamaAnswer


class OllamaGenerateResult(OllamaPart):
    """The response of /api/generate."""

    response: str
    thinking: str | None = None


class OllamaEmbedResult(Result):
    """The response of /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsResult(Result):
    """The response of /api/embeddings."""

    embedding: list[float]


class OllamaVersion(Result):
    """The response of /api/version."""

    version: str
    weft: str


class OllamaDetails(Result):
    """Details of a model; empty while it is being loaded."""

    parent_model: str | None = None
    format: str | None = None
    family: str | None = None
    families: list[str] | None = None
    parameter_size: str | None = None
    quantization_level: str | None = None


class OllamaModel(Result):
    """A model that requests may name."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModelList(Result):
    """The response of /api/tags."""

    models: list[OllamaModel]


class OllamaProcess(Result):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcessList(Result):
    """The response of /api/ps."""

    models: list[OllamaProcess]


class OllamaShowResult(Result):
    """The response of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
