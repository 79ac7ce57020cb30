"""OpenAI's /v1/completions: continue a prompt, or several."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from weft.engine.logprobs import TokenLogprob
from weft.serve.api_errors import ApiError, error_body
from weft.serve.bodies import rejected
from weft.serve.context import CallOf, HttpCall
from weft.serve.generation import Choice, ChoiceEvent, Generation, Submitted
from weft.serve.openai_fields import (
    ChunkWriter,
    SamplingBody,
    finish_name,
    text_options,
    token_text,
    usage_json,
)
from weft.serve.output_parser import TextDelta
from weft.serve.responses import JsonResponse
from weft.serve.served_model import ServedModel
from weft.serve.streaming import DONE, event_stream, sse, until_gone
from weft.serve.text_options import make_request

router = APIRouter(prefix="/v1", tags=["OpenAI"])

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    model: str
    """Name of a served model."""
    prompt: str | list[str] | list[int] | list[list[int]]
    """A text, token ids, or a list of either."""
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    """Maximum number of new tokens of each text; default 16."""
    best_of: Annotated[int | None, Field(ge=1, le=20)] = None
    """Samples of which the n best by mean log-probability are returned; with use_beam_search the
    width of the beam."""
    echo: bool | None = None
    """Put the prompt before each text."""
    logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    """Return the log-probability of each token and of the N most likely ones."""
    suffix: Annotated[
        Any, rejected("models here continue a text; they do not fill gaps. Leave it out.")
    ] = None


@router.post("/completions")
async def create_completion(body: CompletionBody, call: CallOf) -> Response:
    """Continue one or several prompts."""
    served = call.open(body, body.model, "decoder")
    check_body(body)
    generation = await until_gone(call, start(call, served, body))
    context = CompletionFormat(call, served, body)
    call.service.recent.remember(context.id, call.caller, served, generation)
    if body.stream:
        return await event_stream(call, context.chunks(generation), context.error_chunk)
    choices = await until_gone(call, generation.collect())
    return JsonResponse(context.whole(generation, choices), headers=call.response_headers)


async def start(call: HttpCall, served: ServedModel, body: CompletionBody) -> Generation:
    def build() -> Submitted:
        options = text_options(
            body, served, body.max_tokens or DEFAULT_MAX_TOKENS, body.best_of, body.logprobs
        )
        if is_best_of(body):
            logprobs = {"logprobs": body.logprobs or 0}
            options = replace(
                options, n=body.best_of or 1, sampling={**options.sampling, **logprobs}
            )
        prompts = prompts_of(served, body.prompt)
        requests = [make_request(served, call.caller, one, options) for one in prompts]
        return Submitted(requests, include_stop=options.include_stop)

    return await Generation.start(call, served, build)


def check_body(body: CompletionBody) -> None:
    """Raise an ApiError for fields that contradict each other."""
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise ApiError(
            400,
            f"best_of is {body.best_of} but n is {body.n}: best_of must be at least n.",
            "best_of",
        )
    if is_best_of(body) and body.stream:
        raise ApiError(400, "best_of cannot be streamed: the best text is known last.", "best_of")
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "echo and logprobs are both set. Leave one of them out.", "echo")


def is_best_of(body: CompletionBody) -> bool:
    """Whether the best of several samples are wanted."""
    return not body.use_beam_search and (body.best_of or 1) > (body.n or 1)


def prompts_of(
    served: ServedModel, prompt: str | list[str] | list[int] | list[list[int]]
) -> list[list[int]]:
    """The token ids of each prompt."""
    if isinstance(prompt, str):
        return [served.builder.prompt_ids(prompt)]
    if not prompt or len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
        raise ApiError(
            400, f"prompt has {len(prompt)} entries: 1 to {MAX_PROMPTS} are allowed.", "prompt"
        )
    if isinstance(prompt[0], int):
        return [list(prompt)]
    return [served.builder.prompt_ids(one) if isinstance(one, str) else list(one) for one in prompt]


def mean_logprob(choice: Choice) -> float:
    return sum(one.logprob for one in choice.logprobs) / max(1, len(choice.logprobs))


@dataclass
class CompletionFormat:
    """Choices -> OpenAI's objects."""

    call: HttpCall
    served: ServedModel
    body: CompletionBody
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.body.model,
        }

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        if is_best_of(self.body):
            choices = self.best(choices)
        return {
            **self.head(),
            "choices": [
                self.choice(
                    index, self.echoed(generation, one), one.logprobs, finish_name(one.finish)
                )
                for index, one in enumerate(choices)
            ],
            "usage": usage_json(generation.usage),
        }

    def best(self, choices: Sequence[Choice]) -> list[Choice]:
        """The n of best_of samples of each prompt with the highest mean log-probability."""
        size, n = self.body.best_of or 1, self.body.n or 1
        groups = [choices[start : start + size] for start in range(0, len(choices), size)]
        return [one for group in groups for one in sorted(group, key=mean_logprob)[-n:][::-1]]

    def echoed(self, generation: Generation, choice: Choice) -> str:
        return self.prompt_text(generation, choice.index) + choice.text

    def prompt_text(self, generation: Generation, index: int) -> str:
        """What `echo` puts before a text."""
        if not self.body.echo:
            return ""
        place = index * len(generation.requests) // generation.num_choices
        prompt = generation.requests[place].prompt
        return self.served.tokenizer.decode(list(prompt))

    def choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob], finish: str | None
    ) -> dict[str, Any]:
        asked = self.body.logprobs is not None
        return {
            "text": text,
            "index": index,
            "logprobs": self.logprobs(logprobs) if asked else None,
            "finish_reason": finish,
        }

    def logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """OpenAI's older form: parallel lists. Offsets count from the beginning of the part."""
        texts = [
            one.decode("utf-8", "replace")
            for one in token_text(self.served, [e.id for e in entries])
        ]
        offsets, position = [], 0
        for text in texts:
            offsets.append(position)
            position += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self.top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def top(self, entry: TokenLogprob) -> dict[str, float]:
        names = token_text(self.served, [index for index, _ in entry.top])
        pairs = zip(names, entry.top, strict=True)
        return {name.decode("utf-8", "replace"): logprob for name, (_, logprob) in pairs}

    async def chunks(self, generation: Generation) -> AsyncIterator[bytes]:
        """The server-sent events of a streamed response."""
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        writer = ChunkWriter(self.head(), with_usage)
        started: set[int] = set()
        async for event in generation.events():
            part = self.part(event)
            if event.index not in started:
                started.add(event.index)
                part["text"] = self.prompt_text(generation, event.index) + part["text"]
            yield writer.chunk(part)
        if with_usage:
            yield writer.last(usage_json(generation.usage))
        yield DONE

    def part(self, event: ChoiceEvent) -> dict[str, Any]:
        text = "".join(delta.text for delta in event.deltas if isinstance(delta, TextDelta))
        return self.choice(event.index, text, event.logprobs, finish_name(event.finish))

    def error_chunk(self, error: ApiError) -> bytes:
        return sse(error_body("/v1/completions", error))
