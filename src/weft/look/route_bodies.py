"""Bodies and results of the routes below /look. The routes write plain objects, which is faster;
the classes of results describe them in /openapi.json and check them in tests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

ModelName = Annotated[str, WithJsonSchema({"type": "string", "format": "weft-model"})]
"""/openapi.json lists the names of the served models in its place."""
MAX_TEXT = 1 << 18
"""Characters of a text; more are more tokens than a trace may have."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_TEXT)]
HeadList = Annotated[
    list[str | tuple[int, int] | tuple[str, int, int]],
    Field(max_length=1024),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": 1024,
            "items": {
                "anyOf": [
                    {"type": "string", "pattern": r"^((encoder|decoder|cross)\.)?\d+\.\d+$"},
                    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
                ]
            },
        }
    ),
]


class LookBody(BaseModel):
    """Base of the bodies: unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""


class TraceBody(LookBody):
    """The body of POST /look."""

    text: Text | TokenIds
    """A text, or the ids that the model reads, special tokens included."""
    target: Text | TokenIds | None = None
    """What the decoder of an encoder-decoder reads; null: the model's own translation."""
    task: Literal["lm", "translate", "encode", "mlm"] | None = None
    """null: that of the model's kind."""
    detail: Literal["auto", "full", "summary"] = "auto"
    """Which arrays are in the answer; the others are read from /look/{id}/array."""
    ablate: HeadList = []
    """Heads whose output is set to zero: [2, 3] or "cross.2.3", layer and head from 0."""
    window: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]] | None = None
    """Only tokens a to b of the text, as if they were all of it."""


class TraceResult(BaseModel):
    """The answer of POST /look: weft.trace/1 (docs/look.md)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)

    schema_: Annotated[str, Field(alias="schema")]
    id: str
    model: dict[str, Any]
    text: str
    target: str | None
    tokens: dict[str, list[dict[str, Any]]]
    words: dict[str, list[dict[str, Any]]]
    stages: list[dict[str, Any]]
    arrays: dict[str, dict[str, Any]]
    candidates: dict[str, list[list[dict[str, Any]]]]
    sampled: dict[str, Any] | None
    ablated: list[str]
    detail: str
    limits: dict[str, Any]
    check: dict[str, float]


class ArrayResult(BaseModel):
    """The answer of /look/{id}/array?as=json."""

    name: str
    shape: list[int]
    dtype: str
    values: Any
    """Numbers, as lists in lists."""


class NeighborResult(BaseModel):
    """A token near another one."""

    id: int
    text: str
    bytes: str
    cosine: float


class NeighborsResult(BaseModel):
    """The answer of /look/{id}/neighbors."""

    token: int
    """Id of the token."""
    neighbors: list[NeighborResult]
    """Best first."""


class NextTokenResult(BaseModel):
    """A token that may come next."""

    id: int
    text: str
    bytes: str
    logit: float
    p: float


class LensResult(BaseModel):
    """The answer of /look/{id}/lens."""

    stack: str
    positions: list[int]
    top: list[list[list[NextTokenResult]]]
    """By layer and position, best first."""


class PromptBody(BaseModel):
    """A prompt to compare."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: Text
    target: Text | None = None
    """For an encoder-decoder: what its decoder has read; `text` is the source then."""
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    """As in the request."""


class PromptPairBody(BaseModel):
    """The body of /look/scratch/{id}/why."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    first: PromptBody
    """The prompt that came first."""
    second: PromptBody
    """The one that did not share its prefix."""


class SharingBody(PromptPairBody):
    """The body of /look/why."""

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""


class SharingReason(BaseModel):
    """One thing that keeps tokens from being shared."""

    code: str
    message: str


class FirstDifference(BaseModel):
    """The first position where the prompts differ."""

    position: int
    first: int | None
    second: int | None
    first_text: str | None
    second_text: str | None


class SharingResult(BaseModel):
    """The answer of /look/why."""

    num_first: int
    num_second: int
    num_equal: int
    num_shared: int
    num_cached: int | None
    page_size: int
    difference: FirstDifference | None
    reasons: list[SharingReason]
