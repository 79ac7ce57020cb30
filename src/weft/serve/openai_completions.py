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

from weft.engine.detokenizer import FinishReason
from weft.engine.logprobs import TokenLogprob
from weft.sampling.params import MAX_LOGPROBS
from weft.serve.api_errors import ApiError, error_body
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import rejected
from weft.serve.completion_logprobs import CompletionLogprobs, joined
from weft.serve.context import CallOf, HttpCall
from weft.serve.generation import Choice, Generation, Submitted
from weft.serve.openai_fields import (
    ChunkWriter,
    SamplingBody,
    finish_name,
    text_options,
    usage_json,
)
from weft.serve.openai_results import TextCompletion
from weft.serve.output_parser import TextDelta
from weft.serve.prompt_logprobs import (
    PromptLogprobs,
    check_prompt_logprobs,
    prompt_logprobs_json,
    score_prompts,
)
from weft.serve.responses import JsonResponse, or_streamed
from weft.serve.schema_types import DecoderName, TextsOrIds
from weft.serve.served_model import ServedModel
from weft.serve.streaming import DONE, event_stream, sse, until_gone
from weft.serve.text_options import make_request

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=ApiRoute)

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    model: DecoderName
    """Name of a served model."""
    prompt: TextsOrIds
    """A text, token ids, or a list of either."""
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    """Maximum number of new tokens of each text; default 16. 0: only the prompt, with echo."""
    best_of: Annotated[int | None, Field(ge=1, le=20)] = None
    """Samples of which the n best by mean log-probability are returned; with use_beam_search the
    width of the beam."""
    echo: bool | None = None
    """Put the prompt before each text, and its log-probabilities before those of the text."""
    logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    """Return the log-probability of each token and of the N most likely ones."""
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """Return the log-probability of each token of the prompt, and of the N most likely ones."""
    suffix: Annotated[
        Any, rejected("models here continue a text; they do not fill gaps. Leave it out.")
    ] = None


@router.post("/completions", response_model=TextCompletion, responses=or_streamed())
async def create_completion(body: CompletionBody, call: CallOf) -> Response:
    """Continue one or several prompts."""
    served = call.open(body, body.model, "decoder")
    check_body(body)
    generation = await until_gone(call, start(call, served, body))
    context = CompletionFormat(call, served, body)
    call.service.recent.remember(context.id, call.caller, served, generation)
    if body.stream:
        return await event_stream(call, context.chunks(generation), context.error_chunk)
    await until_gone(call, context.score(generation))
    choices = await until_gone(call, generation.collect())
    if is_best_of(body):
        choices = best_choices(body, choices)
        indices = [one.index for one in choices]
        call.service.recent.remember(context.id, call.caller, served, generation, indices)
    return JsonResponse(context.whole(generation, choices), headers=call.response_headers)


async def start(call: HttpCall, served: ServedModel, body: CompletionBody) -> Generation:
    def build() -> Submitted:
        limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        options = text_options(body, served, limit, body.best_of, body.logprobs)
        if is_best_of(body):
            logprobs = {"logprobs": body.logprobs or 0}
            options = replace(
                options, n=body.best_of or 1, sampling={**options.sampling, **logprobs}
            )
        prompts = prompts_of(served, body.prompt)
        requests = [make_request(served, call.caller, one, options) for one in prompts]
        return Submitted(requests, None, options.include_stop, options.is_prompt_only)

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
    check_prompt_logprobs(body.prompt_logprobs, body.stream)


def num_prompt_logprobs(body: CompletionBody) -> int | None:
    """How many of the most likely tokens of prompts are asked for; None: no log-probabilities."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((one for one in asked if one is not None), default=None)


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


def best_choices(body: CompletionBody, choices: Sequence[Choice]) -> list[Choice]:
    """The n of best_of samples of each prompt with the highest mean log-probability."""
    size, n = body.best_of or 1, body.n or 1
    groups = [choices[start : start + size] for start in range(0, len(choices), size)]
    return [one for group in groups for one in sorted(group, key=mean_logprob)[-n:][::-1]]


@dataclass
class CompletionFormat:
    """Choices -> OpenAI's objects."""

    call: HttpCall
    served: ServedModel
    body: CompletionBody
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    prompts: list[PromptLogprobs] = field(default_factory=list)
    """Log-probabilities of the prompts, if they are asked for."""
    writers: dict[int, CompletionLogprobs] = field(default_factory=dict)
    """By index of the choice."""

    async def score(self, generation: Generation) -> None:
        """Compute the log-probabilities of the prompts, if they are asked for."""
        num_top = num_prompt_logprobs(self.body)
        if num_top is not None:
            self.prompts = await score_prompts(generation, num_top)

    def head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.body.model,
        }

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        made = [
            self.choice(generation, one.index, one.text, one.logprobs, one.finish)
            for one in choices
        ]
        if self.body.prompt_logprobs is not None:
            for one, value in zip(choices, made, strict=True):
                entries = self.prompt_entries(generation, one.index, self.body.prompt_logprobs)
                value["prompt_logprobs"] = prompt_logprobs_json(self.served, entries)
        return {
            **self.head(),
            "choices": [{**value, "index": index} for index, value in enumerate(made)],
            "usage": usage_json(generation.usage),
        }

    def choice(
        self,
        generation: Generation,
        index: int,
        text: str,
        entries: Sequence[TokenLogprob],
        finish: FinishReason | None,
    ) -> dict[str, Any]:
        """A text, or the next part of one. With `echo`, the first part begins with the prompt."""
        request = generation.requests[generation.place_of(index)]
        is_first, asked = index not in self.writers, self.body.logprobs
        if is_first:
            self.writers[index] = CompletionLogprobs(self.served, request.visible_ids)
        lists, before = [], ""
        if is_first and self.body.echo:
            before = self.served.tokenizer.decode(request.prompt, not request.visible_ids)
            if asked is not None:
                echoed = self.prompt_entries(generation, index, asked)
                lists.append(self.writers[index].prompt(request.prompt, echoed, before))
        if asked is not None:
            lists.append(self.writers[index].part([one.id for one in entries], entries))
        return {
            "text": before + text,
            "index": index,
            "logprobs": joined(lists) if lists else None,
            "finish_reason": finish_name(finish),
        }

    def prompt_entries(self, generation: Generation, index: int, num_top: int) -> PromptLogprobs:
        """The log-probabilities of the prompt of a choice."""
        entries = self.prompts[generation.place_of(index)]
        return [one and replace(one, top=one.top[:num_top]) for one in entries]

    async def chunks(self, generation: Generation) -> AsyncIterator[bytes]:
        """The server-sent events of a streamed response."""
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        writer = ChunkWriter(self.head(), with_usage)
        await self.score(generation)  # here, where pings are sent meanwhile
        async for event in generation.events():
            text = "".join(delta.text for delta in event.deltas if isinstance(delta, TextDelta))
            part = self.choice(generation, event.index, text, event.logprobs, event.finish)
            yield writer.chunk(part)
        if with_usage:
            yield writer.last(usage_json(generation.usage))
        yield DONE

    def error_chunk(self, error: ApiError) -> bytes:
        return sse(error_body("/v1/completions", error))
