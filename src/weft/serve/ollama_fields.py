"""What Ollama's routes share: bodies, options, formats, thinking, times and errors.

Ollama's own programs and `curl -d` send JSON with any content type, so `AnyTypeRoute` reads every
body as JSON. Unknown fields and options are ignored, as Ollama does. Sampling parameters that the
request, the server (`--defaults`) and the model leave out are Ollama's: DEFAULTS.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from weft.core.errors import shown
from weft.engine.grammar import Grammar, make_grammar
from weft.sampling.params import MAX_LOGPROBS
from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import LooseBody, NoEffect, TemplateVariable, rejected
from weft.serve.context import HttpCall
from weft.serve.schema_types import OBJECT, STOP, ModelName, described, one_of, sampling_range
from weft.serve.served_model import ServedModel
from weft.serve.text_options import TextOptions, random_seed

SAMPLING_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Ollama's names -> fields of SamplingParams."""
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Differs from Ollama's in that nothing is penalized: its repeat_penalty of 1.1 counts the last 64
tokens, and here it would count all of the prompt."""
RANDOM_SEED = -1
FORMAT = described({"anyOf": [one_of("json", ""), OBJECT]})
TEXT_ONLY = "models here read text only. Leave it out."


class AnyTypeRoute(ApiRoute):
    """A route that reads its body as JSON, whatever its content type."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handle_any(request: Request) -> Response:
            headers = [one for one in request.scope["headers"] if one[0] != b"content-type"]
            request.scope["headers"] = [*headers, (b"content-type", b"application/json")]
            return await handle(Request(request.scope, request.receive))

        return handle_any


def ollama_router() -> APIRouter:
    """A router of Ollama's routes."""
    return APIRouter(prefix="/api", tags=["Ollama"], route_class=AnyTypeRoute)


class OllamaOptions(LooseBody):
    """Options of a text; names are those of a Modelfile's parameters."""

    num_predict: int | None = None
    """Maximum number of new tokens; 0 or less: all that the context length leaves."""
    temperature: Annotated[float | None, sampling_range("temperature")] = None
    """Sampling temperature; 0: greedy."""
    top_k: Annotated[int | None, sampling_range("top_k", -1)] = None
    """Sample from the k most likely tokens; 0 or -1: all."""
    top_p: Annotated[float | None, sampling_range("top_p")] = None
    """Nucleus sampling; 0: only the most likely token."""
    min_p: Annotated[float | None, sampling_range("min_p")] = None
    """Minimum probability of a token, relative to the most likely one."""
    repeat_penalty: Annotated[float | None, sampling_range("repetition_penalty")] = None
    """Above 1: tokens of the prompt and the output become less likely."""
    presence_penalty: Annotated[float | None, sampling_range("presence_penalty")] = None
    """Subtracted from the logits of tokens that occur in the output."""
    frequency_penalty: Annotated[float | None, sampling_range("frequency_penalty")] = None
    """Subtracted from a token's logit once for each occurrence in the output."""
    seed: int | None = None
    """Seed of the random draws; -1: a random one."""
    stop: Annotated[str | list[str] | None, STOP] = None
    """Stop strings, which are not part of the text."""
    num_ctx: NoEffect[int] = None
    """The context length is always the model's."""
    num_keep: NoEffect[int] = None
    num_batch: NoEffect[int] = None
    num_gpu: NoEffect[int] = None
    main_gpu: NoEffect[int] = None
    num_thread: NoEffect[int] = None
    use_mmap: NoEffect[bool] = None
    repeat_last_n: NoEffect[int] = None
    """repeat_penalty counts all tokens."""
    typical_p: NoEffect[float] = None


class OllamaBody(LooseBody):
    """Fields of all of Ollama's requests that name a model."""

    model: ModelName
    """Name of a served model, with or without `:latest`."""
    options: OllamaOptions | None = None
    """Sampling parameters, num_predict and stop."""
    keep_alive: NoEffect[float | str] = None
    """Models stay loaded. With an empty prompt, 0 is answered with done_reason unload."""


class OllamaTextBody(OllamaBody):
    """Fields of /api/chat and /api/generate."""

    stream: bool | None = None
    """Send the text as it is generated; default true."""
    format: Annotated[Any, FORMAT] = None
    """"json" for a JSON object, or a JSON schema: the text is valid under it."""
    think: TemplateVariable[bool | str] = None
    """enable_thinking of the chat template; low, medium or high: reasoning_effort too."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """With logprobs: also those of the N most likely tokens."""
    truncate: NoEffect[bool] = None
    """A prompt that does not fit is an error with both lengths."""
    shift: NoEffect[bool] = None
    """A text ends where the context length ends."""
    images: Annotated[Any, rejected(TEXT_ONLY)] = None

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False

    @property
    def is_unload(self) -> bool:
        """Whether keep_alive is zero: 0, "0" or "0s"."""
        if isinstance(self.keep_alive, str):
            return self.keep_alive.rstrip("hmsunµ") in ("0", "0.0", "-0")
        return self.keep_alive == 0


def warn_ignored(call: HttpCall, body: OllamaTextBody, *names: str) -> None:
    """Name the fields of a request that change nothing, although they would change the text in
    Ollama."""
    ignored = [name for name in names if getattr(body, name) not in (None, False, "", [])]
    if ignored:
        call.warn(f"these fields have no effect here: {', '.join(ignored)}")


def ollama_text_options(body: OllamaTextBody) -> TextOptions:
    """The options of a text, with the grammar of its format."""
    options = body.options or OllamaOptions()
    values: dict[str, Any] = {
        name: getattr(options, theirs)
        for theirs, name in SAMPLING_OPTIONS.items()
        if getattr(options, theirs) is not None
    }
    if values.get("top_k", 0) < 0:
        values["top_k"] = 0
    if body.logprobs:
        values["logprobs"] = body.top_logprobs or 0
    limit, seed = options.num_predict or 0, options.seed
    return TextOptions(
        max_tokens=limit if limit > 0 else None,
        sampling=values,
        seed=random_seed() if seed == RANDOM_SEED else None if seed is None else seed % 2**63,
        defaults=DEFAULTS,
        stop=[options.stop] if isinstance(options.stop, str) else options.stop or (),
        grammar=grammar_of_format(body.format),
        is_streamed=body.is_streamed,
    )


def grammar_of_format(value: Any) -> Grammar | None:
    """The grammar of a format: "json", a JSON schema, or none."""
    if value in (None, ""):
        return None
    if value == "json":
        return make_grammar("json_object", None)
    if isinstance(value, dict):
        return make_grammar("json_schema", value)
    raise ApiError(400, f'format is {shown(value)}: it must be "json" or a JSON schema.', "format")


def thinking_variables(served: ServedModel, think: bool | str | None) -> dict[str, Any]:
    """Variables of the chat template."""
    if think is None or think == "":
        return {}
    if think and served.reasoning is None:
        raise ApiError(
            400,
            f"think is {shown(think)}, but the chat template of model '{served.name}' has no "
            "thinking. Leave it out.",
            "think",
        )
    variables: dict[str, Any] = {"enable_thinking": bool(think)}
    return {**variables, "reasoning_effort": think} if isinstance(think, str) else variables


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339, in UTC; None: now."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def source_ids(served: ServedModel, text: str) -> list[int]:
    """The token ids of a text to translate. One that does not fit is an error: it is never
    truncated."""
    ids = served.tokenizer.encode(text, max_len=sys.maxsize)
    if len(ids) > served.max_len:
        raise ApiError(
            400,
            f"the prompt has {len(ids)} tokens, and the model's context length is "
            f"{served.max_len}. Split the text into shorter ones.",
            "prompt",
            "context_length_exceeded",
        )
    return ids
