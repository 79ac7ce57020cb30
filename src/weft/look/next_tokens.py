"""The most likely next tokens: logits -> NextTokens, and the token that sampling chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from weft.look.trace_data import NextToken, SampledToken
from weft.look.words import readable
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.params import SamplingParams
from weft.sampling.sampler import sample_row, uniform
from weft.text.tokenizer import Tokenizer

NUM_CANDIDATES = 20


def candidates_of(
    logits_NV: Tensor, tokenizer: Tokenizer, number: int = NUM_CANDIDATES
) -> list[tuple[NextToken, ...]]:
    """The largest logits of each row with their probabilities, best first."""
    top = logits_NV.topk(min(number, logits_NV.shape[-1]))
    lse_N = logits_NV.logsumexp(-1, keepdim=True)
    rows = zip(
        top.indices.tolist(), top.values.tolist(), (top.values - lse_N).exp().tolist(), strict=True
    )
    return [
        tuple(
            NextToken(index, *shown_token(tokenizer, index), logit, p)
            for index, logit, p in zip(*row, strict=True)
        )
        for row in rows
    ]


def shown_token(tokenizer: Tokenizer, index: int) -> tuple[str, str]:
    """Readable text and bytes in hex; a model may have more ids than its tokenizer."""
    if index >= tokenizer.vocab_size:
        return f"<{index}>", ""
    (data,) = tokenizer.token_bytes([index])
    return readable(data), data.hex()


def sample_next(
    logits_V: Tensor, tokenizer: Tokenizer, params: SamplingParams, prompt: Sequence[int]
) -> SampledToken | None:
    """The token that the engine chooses after this prompt; None if all are excluded."""
    row = SamplingRow(params, len(prompt), prompt)
    index = sample_row(logits_V, row)
    if index < 0:
        return None
    p = math.exp(float(logits_V[index] - logits_V.float().logsumexp(-1)))
    u = None if params.is_greedy else uniform(params.seed, row.position)
    return SampledToken(index, *shown_token(tokenizer, index), p, u)
