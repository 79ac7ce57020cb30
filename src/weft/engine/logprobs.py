"""Log-probabilities: logits_BV and the chosen ids -> what each request reports of its token.

They are the model's own, before grammar, bias, penalties, temperature and cuts, as OpenAI reports
them: a token that sampling would never take has its number too. Each row is computed by itself, so
that a number does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.sampling.logits_processors import top_ids


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its log-probability, and the likeliest tokens in its place with theirs."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest first, the lowest id first among equals. The token itself is among them only if
    it is that likely."""


def logprobs(
    logits_BV: Tensor, ids: Sequence[int], counts: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """One for each row; `counts` is the `logprobs` of its settings, None where none are wanted."""
    rows = zip(logits_BV, ids, counts, strict=True)
    return [None if k is None else token_logprob(row_V, token, k) for row_V, token, k in rows]


def token_logprob(logits_V: Tensor, token: int, count: int) -> TokenLogprob:
    """The log-probability of a token and of the `count` likeliest, from the model's logits."""
    logits_V = logits_V.float()
    logp_V = logits_V.log_softmax(-1)
    if count == 0:
        return TokenLogprob(token, float(logp_V[token]))
    top_K = top_ids(logits_V, count)
    top = tuple(zip(top_K.tolist(), logp_V[top_K].tolist(), strict=True))
    return TokenLogprob(token, float(logp_V[token]), top)
