"""Log-probabilities of chosen tokens and of the most likely ones, from the model's logits.

They are computed before grammar, bias, penalties, temperature and truncation, as OpenAI reports
them, so tokens that sampling excludes have one too. Each row is computed by itself and does not
depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.sampling.logits_processors import top_ids


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability, and the most likely tokens in its position."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, log-probability), most likely first, ties by the lowest id. The token itself is included
    only if it is among them."""


def token_logprob(logits_V: Tensor, token: int, count: int) -> TokenLogprob:
    """The log-probability of a token and of the `count` most likely ones."""
    logits_V = logits_V.float()
    logp_V = logits_V.log_softmax(-1)
    if count == 0:
        return TokenLogprob(token, float(logp_V[token]))
    top_K = top_ids(logits_V, count)
    top = tuple(zip(top_K.tolist(), logp_V[top_K].tolist(), strict=True))
    return TokenLogprob(token, float(logp_V[token]), top)
