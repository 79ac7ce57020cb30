"""Answers as `--json` shows them, in the words of OpenAI's API where it has them.

    {"index": 0, "prompt": "1, 2,", "text": " 3", "tokens": [22, 35], "finish_reason": "stop",
     "stop_reason": ",", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}

finish_reason is "length" where max_tokens ended the text, else "stop"; stop_reason is the stop that
did, null for the model's own end. With --logprobs there is a list beside it, an entry for each
token: {"token", "id", "logprob", "top_logprobs": [{"token", "id", "logprob"}, ...]}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.engine.answers import Answer
    from weft.text.tokenizer import Tokenizer


def answer_object(
    answer: Answer, prompt: str, tokenizer: Tokenizer, has_logprobs: bool
) -> dict[str, Any]:
    """One answer to one prompt."""
    told: dict[str, Any] = {
        "index": answer.index,
        "prompt": prompt,
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": finish_reason(answer),
        "stop_reason": answer.finish.stop if answer.finish else None,
    }
    if has_logprobs:
        told["logprobs"] = logprob_list(answer, tokenizer)
    usage = {"prompt_tokens": answer.num_prompt, "completion_tokens": len(answer.tokens)}
    return {**told, "usage": usage}


def finish_reason(answer: Answer) -> str | None:
    """stop or length; None for a prompt without text, which was not answered."""
    if answer.finish is None:
        return None
    return "length" if answer.finish.reason == "length" else "stop"


def logprob_list(answer: Answer, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """An entry for each token; that of an end token is left out, as the token is."""
    found = answer.logprobs[: len(answer.tokens)]
    return [
        {
            **one_logprob(one.id, one.logprob, tokenizer),
            "top_logprobs": [one_logprob(*pair, tokenizer) for pair in one.top],
        }
        for one in found
    ]


def one_logprob(index: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": token_text(index, tokenizer), "id": index, "logprob": logprob}


def token_text(index: int, tokenizer: Tokenizer) -> str:
    """The text of one token. Half a character shows as the mark for what is no text."""
    writer = tokenizer.target
    if index >= writer.vocab_size:
        return ""  # models have more ids than their tokenizer, rounded up
    return writer.token_bytes([index])[0].decode("utf-8", "replace")
