"""Bodies and results of the routes below /look/scratch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.look.route_bodies import LookBody, ModelName, Text

MAX_TOKENS = 4096
"""Tokens that the pages of a scratch engine have room for."""


class ScratchBody(LookBody):
    """The body of POST /look/scratch."""

    num_pages: Annotated[int | None, Field(ge=2, le=1024)] = None
    """Pages of the KV cache; null: 24, or so many for each KV cache group and those of the source
    of a scenario."""
    page_size: Annotated[int, Field(ge=1, le=64)] = 4
    """Tokens of a page; all pages together have at most 4,096."""
    prefix_cache: Literal["radix", "hash", "none"] = "radix"
    token_budget: Annotated[int, Field(ge=8, le=256)] = 64
    """Tokens of a step: longer prompts take several."""
    scenario: Text | None = None
    """A text: requests with parts of it share prefixes, are evicted and preempted. One of less than
    four pages of tokens is repeated. null: no requests."""


class ScratchRequestBody(BaseModel):
    """The body of POST /look/scratch/{id}/submit."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Text
    """A prompt, or the source of an encoder-decoder."""
    target: Text | None = None
    """For an encoder-decoder: the beginning of the translation."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 16
    beam: Annotated[int | None, Field(ge=1, le=8)] = None
    """Width of a beam search; null: sampling."""
    n: Annotated[int, Field(ge=1, le=8)] = 1
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class GenerateBody(ScratchRequestBody):
    """The body of POST /look/generate."""

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""
    num_pages: Annotated[int | None, Field(ge=2, le=1024)] = None
    """Pages of the KV cache; null: 24 for each KV cache group."""
    page_size: Annotated[int, Field(ge=1, le=64)] = 4
    resume: Annotated[str | None, Field(max_length=100)] = None
    """Id of the session of an earlier stream: its events after the header Last-Event-ID. The other
    fields are ignored then."""


class ScratchStepBody(BaseModel):
    """The body of POST /look/scratch/{id}/step."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    count: Annotated[int, Field(ge=1, le=256)] = 1
    """Steps; fewer if nothing is left to do."""


class ScratchResetBody(BaseModel):
    """The body of POST /look/scratch/{id}/reset: an empty object."""

    model_config = ConfigDict(extra="forbid")


class ScratchStepResult(BaseModel):
    """One step."""

    step: int
    ops: list[dict[str, Any]]
    """Events as in weft.cache.events."""
    arrived: list[str]
    preempted: list[str]
    finished: list[str]
    """Requests that ended in this step."""
    evicted: int
    beams: dict[str, list[list[int]]]
    """New tokens of the hypotheses of each beam search that runs after the step."""
    tokens: list[dict[str, Any]]


class ScratchResult(BaseModel):
    """What all routes of a scratch engine answer."""

    id: str
    name: str | None = None
    """Of the request that was submitted."""
    steps: list[ScratchStepResult]
    snapshot: dict[str, Any]
    texts: dict[str, dict[str, str]]
    """Text and bytes (hex) by token id."""


class ScratchDeleted(BaseModel):
    """The answer of DELETE /look/scratch/{id}."""

    id: str
    deleted: bool
