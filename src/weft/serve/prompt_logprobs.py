"""Log-probabilities of prompts: for `echo` with logprobs, and vLLM's field `prompt_logprobs`.

    entries = await score_prompts(generation, num_top)      for each prompt, one entry per token
    prompt_logprobs_json(served, entries[0])                vLLM's form of one prompt

The first token of a prompt has no entry, since nothing precedes it. All of a prompt is computed a
second time, beside the request itself: the prefix cache holds keys and values, from which logits
cannot be computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from weft.engine.logprobs import TokenLogprob
from weft.serve.api_errors import ApiError, server_fault
from weft.serve.generation import Generation
from weft.serve.openai_fields import token_text
from weft.serve.served_model import ServedModel

PromptLogprobs = list[TokenLogprob | None]
"""One entry per token of a prompt; the first is None."""


async def score_prompts(generation: Generation, num_top: int) -> list[PromptLogprobs]:
    """The log-probabilities of the prompts of a generation, with those of the `num_top` most likely
    tokens. If this fails or is cancelled, the generation ends too."""
    call, served = generation.call, generation.served
    engine = served.engine.engine
    prompts = [request.prompt for request in generation.requests]
    scored: list[PromptLogprobs] = [[None] * len(prompt) for prompt in prompts]
    places = [place for place, prompt in enumerate(prompts) if len(prompt) > 1]
    try:
        prepared = await asyncio.to_thread(
            lambda: [
                engine.prepare_score(prompts[place], key=call.caller.name, num_top=num_top)
                for place in places
            ]
        )
        stream = served.engine.stream(*prepared)
        by_id = dict(zip(stream.ids, places, strict=True))
        try:
            async with asyncio.timeout_at(call.deadline):
                async for output in stream:
                    if output.error is not None:
                        raise server_fault(output.error, call.id)
                    scored[by_id[output.request_id]][1:] = output.logprobs
        except TimeoutError:
            raise call.timed_out() from None
        finally:
            stream.close()
    except BaseException:
        generation.stream.close()
        raise
    return scored


def check_prompt_logprobs(asked: int | None, is_streamed: bool | None) -> None:
    """Raise an ApiError if a stream would have to carry them: no chunk has a place for them."""
    if asked is not None and is_streamed:
        raise ApiError(
            400, "prompt_logprobs cannot be streamed. Leave out stream.", "prompt_logprobs"
        )


def prompt_logprobs_json(
    served: ServedModel, entries: Sequence[TokenLogprob | None]
) -> list[dict[str, Any] | None]:
    """vLLM's form: token id -> logprob, rank and decoded_token; of the token itself and of the most
    likely ones. The rank of a token that is not among them is null."""
    return [None if entry is None else entry_json(served, entry) for entry in entries]


def entry_json(served: ServedModel, entry: TokenLogprob) -> dict[str, Any]:
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    logprobs = {entry.id: entry.logprob, **dict(entry.top)}
    texts = token_text(served, list(logprobs))
    return {
        str(token): {
            "logprob": logprob,
            "rank": ranks.get(token),
            "decoded_token": text.decode("utf-8", "replace"),
        }
        for (token, logprob), text in zip(logprobs.items(), texts, strict=True)
    }
