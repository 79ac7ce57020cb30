"""Completions as `--json` prints them, with the field names of OpenAI's API where it has them.

    {"index": 0, "prompt": "1, 2,", "text": " 3", "tokens": [22, 35], "finish_reason": "stop",
     "stop_reason": ",", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}

finish_reason is "length" if max_tokens ended the text, else "stop"; stop_reason is the stop string
that ended it, null for an end token. With --logprobs there is a list with an entry for each token:
{"token", "id", "logprob", "top_logprobs": [{"token", "id", "logprob"}, ...]}. Bytes of a token
that are not whole characters are written as <0xE8>.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.engine.client import Completion
    from weft.text.tokenizer import Tokenizer


def completion_object(
    completion: Completion, prompt: str, tokenizer: Tokenizer, has_logprobs: bool
) -> dict[str, Any]:
    """One completion of one prompt."""
    result: dict[str, Any] = {
        "index": completion.index,
        "prompt": prompt,
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": finish_reason(completion),
        "stop_reason": completion.finish.stop if completion.finish else None,
    }
    if has_logprobs:
        result["logprobs"] = logprob_list(completion, tokenizer)
    usage = {"prompt_tokens": completion.num_prompt, "completion_tokens": len(completion.tokens)}
    return {**result, "usage": usage}


def finish_reason(completion: Completion) -> str | None:
    """stop or length; None for an empty prompt, which is not completed."""
    if completion.finish is None:
        return None
    return "length" if completion.finish.reason == "length" else "stop"


def logprob_list(completion: Completion, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """An entry for each token, without the end token."""
    logprobs = completion.logprobs[: len(completion.tokens)]
    return [
        {
            **one_logprob(one.id, one.logprob, tokenizer),
            "top_logprobs": [one_logprob(*pair, tokenizer) for pair in one.top],
        }
        for one in logprobs
    ]


def one_logprob(index: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    from weft.text.token_labels import token_label

    return {"token": token_label(tokenizer.target, index), "id": index, "logprob": logprob}
