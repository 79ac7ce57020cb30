"""Texts read as a whole by the engine: embeddings, and log-likelihoods of given texts.

    embed_texts   texts -> one vector of length 1 each: mean, first or last of the hidden states
    score_texts   texts -> summed negative log-likelihood of a decoder, and number of tokens

Embeddings: hidden states of an encoder, of the encoder of an encoder-decoder, or of a decoder
before its LM head. A text is truncated at the model's max_len, or at the shorter length that the
model was trained for (MiniLM: 256 of 512); the tokenizer's report counts it.

Scores: each text stands alone, with BOS and EOS, and every token but the first is predicted from
those before it. A text longer than max_len is scored in parts of max_len without context from the
part before, so the first tokens of a part are a little harder than in a longer model.

Texts run packed, without padding; a result does not depend on the batch, and no token is skipped
because the prefix cache knows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.client import EngineClient, Progress
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

Pool = Callable[[Tensor], Tensor]
"""x_TD -> x_D."""


def mean(x_TD: Tensor) -> Tensor:
    return x_TD.sum(0) / len(x_TD)


def first(x_TD: Tensor) -> Tensor:
    return x_TD[0]


def last(x_TD: Tensor) -> Tensor:
    return x_TD[-1]


POOLINGS: dict[str, Pool] = {"mean": mean, "first": first, "last": last}


def find_pooling(name: str) -> Pool:
    """The pooling of a model by its name: x_TD -> x_D."""
    if name not in POOLINGS:
        raise UsageError(
            f"the model's pooling is '{name}': Weft has {', '.join(POOLINGS)}. Use a model "
            "with one of them."
        )
    return POOLINGS[name]


def pool_vectors(pool: Pool, vectors_TD: Tensor) -> Tensor:
    """vector_D of length 1 of the hidden states of one text, in float32."""
    return F.normalize(pool(vectors_TD.float()), dim=-1).cpu()


def max_embedded_len(config: ModelConfig, tokenizer: Tokenizer) -> int:
    """Tokens of a text to embed, begin and end included."""
    return min(config.max_cached_len, tokenizer.max_len or config.max_len)


def nonempty(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The ids; one padding token for an empty text of a tokenizer without begin and end."""
    return ids or [tokenizer.pad_id or 0]


def embed_texts(
    client: EngineClient,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: str,
    progress: Progress,
) -> Tensor:
    """vectors_BD of length 1, in the order of the texts."""
    pool, config = find_pooling(pooling), client.engine.model.config
    rows = tokenizer.encode_batch(texts, max_len=max_embedded_len(config, tokenizer))
    vectors_BD = torch.zeros(len(rows), config.width)
    for index, output in client.embeddings([nonempty(row, tokenizer) for row in rows]):
        assert output.vectors_TD is not None, f"text {index} was not embedded"
        vectors_BD[index] = pool_vectors(pool, output.vectors_TD)
        progress(1)
    return vectors_BD


@dataclass(frozen=True)
class TextScore:
    """Summed negative log-likelihood of `tokens` tokens, in nats."""

    nats: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean loss per token."""
        return exp(min(self.per_token, 700.0))


def score_texts(
    client: EngineClient, tokenizer: Tokenizer, texts: Sequence[str], progress: Progress
) -> TextScore:
    """The score of all texts together. Blank texts are skipped."""
    nonblank = [text for text in texts if text.strip()]
    max_len = client.engine.model.config.max_cached_len
    rows = [
        part
        for ids in tokenizer.encode_batch(nonblank, max_len=sys.maxsize)
        for part in split_at_max_len(ids, max_len)
    ]
    if not rows:
        raise UsageError(
            f"none of the {len(texts)} texts has at least two tokens, so there is nothing to "
            "predict. Use longer texts."
        )
    return TextScore(score_rows(client, rows, progress), sum(len(row) - 1 for row in rows))


def split_at_max_len(ids: list[int], max_len: int) -> list[list[int]]:
    """Parts of at most max_len input tokens and one more to predict; each token is predicted
    once."""
    return [ids[start : start + max_len + 1] for start in range(0, len(ids) - 1, max_len)]


def score_rows(client: EngineClient, rows: Sequence[Sequence[int]], progress: Progress) -> float:
    """Negative log-likelihood summed over all tokens of the rows but their first."""
    losses = [0.0] * len(rows)
    for index, output in client.scores(rows):
        losses[index] = -sum(one.logprob for one in output.logprobs)
        progress(1)
    return sum(losses)  # in the order of the rows, so that the sum does not depend on timing
